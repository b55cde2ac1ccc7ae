// Pages checked by axe-core in headless Chromium: no violation of WCAG level A or AA may be left.
// Each page is opened at 1280 and 400 pixels, light and dark, folded and with everything unfolded.
//
//   mkdir /tmp/axe && cd /tmp/axe && npm install axe-core playwright-core
//   node REPOSITORY/.ci/accessibility.cjs runs/*/report.html runs/compare-*/comparison.html
//
// The packages are found in the current folder; the browser is /usr/bin/chromium, or $CHROMIUM.
"use strict";
const path = require("path");
const find = (name) => require.resolve(name, { paths: [process.cwd()] });
const { chromium } = require(find("playwright-core"));
const axe = find("axe-core/axe.min.js");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const VIEWS = [1280, 400].flatMap((width) => ["light", "dark"].map((colorScheme) => ({ width, colorScheme })));

const check = async (browser, file, { width, colorScheme }, unfolded) => {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  await page.goto("file://" + path.resolve(file));
  await page.waitForFunction(() => document.documentElement.dataset.ready === "yes", null, { timeout: 120000 });
  if (unfolded) {
    await page.evaluate(() => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
    const drawn = () => [...document.querySelectorAll(".chart")].every((c) => c.querySelector("svg"));
    await page.waitForFunction(drawn, null, { timeout: 120000 });
  }
  await page.addScriptTag({ path: axe });
  const { violations } = await page.evaluate((tags) => axe.run(document, { runOnly: tags }), TAGS);
  await page.close();
  return violations;
};

(async () => {
  const files = process.argv.slice(2);
  if (!files.length) throw new Error("name at least one page");
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
  let found = 0;
  for (const file of files) for (const view of VIEWS) for (const unfolded of [false, true]) {
    const violations = await check(browser, file, view, unfolded);
    found += violations.length;
    console.log(`${file} ${view.width} ${view.colorScheme} ${unfolded ? "unfolded" : "folded"}: ${violations.length} violations`);
    for (const v of violations) {
      console.log(`  ${v.id} (${v.impact}): ${v.help}`);
      v.nodes.slice(0, 3).forEach((n) => console.log(`    ${n.target.join(" ")}: ${n.failureSummary.split("\n")[1]}`));
    }
  }
  await browser.close();
  process.exitCode = found ? 1 : 0;
})();
