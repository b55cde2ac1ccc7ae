"""Adds the chart library to a wheel when it is built, so that a report needs no chart engine.

Everything else is in pyproject.toml. The script is made by vl-convert (Vega, Vega-Lite and vega-embed in one
file) and never committed; an editable install has none, and takes it from vl-convert for its first page.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

STATIC = Path("probe", "report", "html", "static")
NOTICE = """\
vega.js holds Vega, Vega-Lite and vega-embed, bundled by vl-convert {version}.

Copyright (c) 2015-2023, University of Washington Interactive Data Lab. All rights reserved.

Redistribution and use in source and binary forms, with or without modification, are permitted
provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions
   and the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions
   and the following disclaimer in the documentation and/or other materials provided with the
   distribution.
3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse
   or promote products derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR
IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR
CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE,
DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER
IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF
THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


class WithCharts(build_py):
    """Modules and data as ever; in a wheel also the chart library and its licence."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        from importlib.metadata import version

        import vl_convert

        place = Path(self.build_lib) / STATIC
        place.mkdir(parents=True, exist_ok=True)
        script = vl_convert.javascript_bundle().replace("</script", "<\\/script")
        (place / "vega.js").write_text(script, encoding="utf-8")
        notice = NOTICE.format(version=version("vl-convert-python"))
        (place / "vega-licence.txt").write_text(notice, encoding="utf-8")


setup(cmdclass={"build_py": WithCharts})
