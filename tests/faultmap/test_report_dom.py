"""The report in a real browser: its script runs, and what a model wrote does not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_run import HOSTILE, HOSTILE_ID, REASON, build_run

from posttrain.faultmap.report import write_report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the browser tests did not run")

PROBE = """
const rows = () => [...document.querySelectorAll("#list li")];
const start = rows().length;
document.querySelector('[data-tag="ungradable"]').click();
const ungradable = rows().map((row) => row.dataset.id);
const token = document.querySelector("#detail [data-token]");
token.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 5, clientY: 5 }));
const hover = document.getElementById("hover").textContent;
const svg = document.querySelector("#reward svg");
svg.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 5, clientY: 5 }));
const result = {
  pwned: String(window.pwned), start, ungradable, hover,
  chart: document.getElementById("hover").textContent,
  detail: document.getElementById("detail").textContent,
  tokens: [...document.querySelectorAll("#detail [data-token]")].map((t) => t.textContent).join(""),
  images: document.images.length, coloured: document.querySelectorAll("#detail .h1, #detail .h2, #detail .h3").length,
};
setTimeout(() => { result.late = String(window.pwned); document.body.dataset.probe = JSON.stringify(result); }, 50);
"""


class ProbeReader(HTMLParser):
    """The probe's result in a dumped page."""

    probe: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self.probe = dict(attrs).get("data-probe")


def with_probe(page: str) -> str:
    """The page with one more script that its policy allows."""
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    allowed, count = re.subn("script-src ", f"script-src &#x27;sha256-{digest}&#x27; ", page, count=1)
    assert count == 1
    return allowed.replace("</body>", f"<script>{PROBE}</script></body>")


def dump(page: str, folder: Path) -> dict[str, object]:
    """Open the page in a fresh browser and return what the probe saw."""
    assert CHROMIUM is not None
    file = folder / "probed.html"
    file.write_text(page, encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}",
             "--virtual-time-budget=3000", "--dump-dom"]  # fmt: skip
    done = subprocess.run([CHROMIUM, *flags, file.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    reader = ProbeReader()
    reader.feed(done.stdout)
    assert reader.probe is not None, done.stdout[:2000]
    return json.loads(reader.probe)


def test_the_planted_trajectory_is_found_and_its_script_is_inert(tmp_path: Path) -> None:
    made = build_run(tmp_path / "run", steps=3, groups=2, size=4)
    seen = dump(with_probe(write_report(made.path).read_text(encoding="utf-8")), tmp_path)
    assert seen["pwned"] == seen["late"] == "undefined"
    assert seen["ungradable"] == [HOSTILE_ID]
    assert isinstance(seen["start"], int)
    assert seen["start"] > 5
    assert seen["tokens"] == HOSTILE
    assert HOSTILE in str(seen["detail"])
    assert REASON in str(seen["detail"])
    assert "log-prob, sampler" in str(seen["hover"])
    assert "step" in str(seen["chart"])
    assert seen["images"] == 0


def test_the_browser_would_have_noticed(tmp_path: Path) -> None:
    """The same text let through unescaped, without the policy, does run: the test above can fail."""
    made = build_run(tmp_path / "run", steps=2, groups=2, size=3)
    page = with_probe(write_report(made.path).read_text(encoding="utf-8"))
    broken = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "<main>", f"<main>{HOSTILE[:32]}"
    )
    assert dump(broken, tmp_path)["pwned"] == "1"


def test_the_policy_alone_would_have_stopped_it(tmp_path: Path) -> None:
    made = build_run(tmp_path / "run", steps=2, groups=2, size=3)
    page = with_probe(write_report(made.path).read_text(encoding="utf-8"))
    seen = dump(page.replace("<main>", f"<main>{HOSTILE.removesuffix('<!--')}"), tmp_path)
    assert seen["pwned"] == seen["late"] == "undefined"
