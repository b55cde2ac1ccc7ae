"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const page = read("page-data");
  const charts = new Map(page.charts.map((chart) => [chart.name, chart]));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  let printing = false;

  const objects = (chart) => {
    const fields = Object.keys(chart.columns);
    return chart.rows.map((row) => Object.fromEntries(row.map((value, i) => [fields[i], value])));
  };

  // The library is inert text and only becomes a script after the first paint.
  let library;
  const load = () => (library ??= new Promise((done) => {
    const script = document.createElement("script");
    script.textContent = document.getElementById("library").textContent;
    document.body.append(script);
    done(window.vegaEmbed);
  }));

  const draw = async (name) => {
    const holder = document.getElementById("chart-" + name);
    const chart = charts.get(name);
    const embed = await load();
    const config = page.themes[dark.matches && !printing ? "dark" : "light"];
    drawn.get(name)?.finalize();
    const spec = { ...chart.spec, data: { values: objects(chart) } };
    const across = spec.facet ? spec.columns * (spec.spec.width + 70) : 0;
    if (across > holder.clientWidth) {
      spec.columns = Math.max(1, Math.floor(holder.clientWidth / (spec.spec.width + 70)));
      spec.spec = { ...spec.spec, width: Math.min(spec.spec.width, holder.clientWidth - 70) };
    }
    const options = { renderer: "svg", actions: false, logLevel: 1, config, defaultStyle: false, tooltip: { theme: dark.matches ? "dark" : "light" } };
    const place = document.createElement("div");  // vega-embed relabels what it draws in
    holder.replaceChildren(place);
    try {
      drawn.set(name, await embed(place, spec, options));
      place.setAttribute("aria-hidden", "true");  // the holder is the image and has its description
    } catch (error) {
      holder.textContent = "This chart could not be drawn; its numbers are in the table below.";
      console.error(name, error);
    }
    holder.dataset.drawn = config === page.themes.dark ? "dark" : "light";
  };

  // One after another, so that the page stays responsive; printing uses the light colours. A folded chart has
  // no width, so it is drawn when it is unfolded.
  const open = (name) => !document.getElementById("chart-" + name).closest("details:not([open])");
  const pause = () => new Promise((done) => setTimeout(done));
  const drawAll = async () => {
    for (const name of [...charts.keys()].filter(open)) {
      await draw(name);
      await pause();
    }
    document.documentElement.dataset.ready = "yes";
  };
  setTimeout(drawAll, 30);
  dark.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { printing = true; [...charts.keys()].filter(open).forEach((name) => draw(name)); });
  addEventListener("afterprint", () => { printing = false; drawAll(); });

  document.querySelectorAll("details.panel").forEach((details) => details.addEventListener("toggle", () => {
    if (details.open) draw(details.querySelector(".chart").id.slice("chart-".length));
  }));

  // Every chart can be read as a table; it is built when first opened.
  const shown = (value) => (value === null ? "\u2013" : String(value));
  const plain = (chart) => {
    const table = document.createElement("table");
    table.createCaption().textContent = chart.title;
    const numeric = (i) => chart.rows.some((row) => typeof row[i] === "number");
    const add = (row, tag, values) => values.forEach((value, i) => {
      const cell = document.createElement(tag);
      cell.textContent = shown(value);
      if (numeric(i)) cell.className = "number";
      if (tag === "th") cell.scope = "col";
      row.append(cell);
    });
    add(table.createTHead().insertRow(), "th", Object.values(chart.columns));
    const body = table.createTBody();
    chart.rows.forEach((values) => add(body.insertRow(), "td", values));
    return table;
  };
  document.querySelectorAll("details[data-chart]").forEach((details) => details.addEventListener("toggle", () => {
    const place = details.querySelector(".tall");
    if (details.open && !place.firstChild) place.append(plain(charts.get(details.dataset.chart)));
  }));

  // Sorting and searching, for every table that asks for it.
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true, sensitivity: "base" }));
  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    const sign = direction === "descending" ? -1 : 1;
    rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      if (cell.querySelector("button")) cell.setAttribute("aria-sort", i === column ? direction : "none");
    });
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((cell, column) => cell.querySelector("button")?.addEventListener("click", () => {
      const first = table.tBodies[0].rows[0]?.cells[column].dataset.value === undefined ? "ascending" : "descending";
      const other = first === "ascending" ? "descending" : "ascending";
      sort(table, column, cell.getAttribute("aria-sort") === first ? other : first);
    }));
  });
  document.querySelectorAll("input[data-search]").forEach((input) => {
    const rows = [...document.getElementById(input.dataset.search).tBodies[0].rows];
    const words = rows.map((row) => row.dataset.words.toLowerCase());
    const count = document.getElementById(input.dataset.count);
    const search = () => {
      const wanted = input.value.trim().toLowerCase();
      let left = 0;
      rows.forEach((row, i) => { row.hidden = !words[i].includes(wanted); left += row.hidden ? 0 : 1; });
      count.textContent = wanted ? `${left} of ${rows.length} classes` : `${rows.length} classes`;
    };
    input.addEventListener("input", search);
    search();
  });
})();
