"""The page of the server, and what it asks the server for: routes, a browser, a keyboard alone.

What needs a browser is skipped without playwright or Chromium (`pip install playwright`; Debian's
package chromium), and accessibility without axe-core (its axe.min.js in BOTHWAYS_AXE).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bothways
from bothways.model.folder import save_model
from bothways.serving.options import KEY
from model_examples import small_bert, small_tokenizer
from serving_examples import Running, make_folders, offline, running

HOSTILE = "<img src=x onerror=\"document.title='taken'\"></script><b>w1</b>"
LABELS = [HOSTILE, "b&amp;c", "c"]
NAMES = ("several", "score", "tags", "choice", "pretrained", "vectors", "reranker")
TASKS = {
    "hostile": ["Label", "Similarity", "Attention"],
    "several": ["Label", "Similarity", "Attention"],
    "score": ["Score", "Similarity", "Attention"],
    "tags": ["Entities", "Similarity", "Attention"],
    "answers": ["Answer", "Similarity", "Attention"],
    "choice": ["Choose", "Similarity", "Attention"],
    "pretrained": ["Fill masks", "Similarity", "Next sentence", "Attention"],
    "vectors": ["Similarity", "Attention"],
    "reranker": ["Score", "Rank", "Similarity", "Attention"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    folders = make_folders(root, *NAMES)
    tokenizer = small_tokenizer(97)
    about: dict[str, Any] = {"kind": "classification", "labels": LABELS}
    save_model(root / "hostile", small_bert(classes=3), tokenizer, about)
    spans = {"no_answer": True, "threshold": 1.5}
    about = {"kind": "spans", "options": {"kind": "spans", "spans": spans}}
    save_model(root / "answers", small_bert(spans=True), tokenizer, about)
    folders = {name: folders.get(name, str(root / name)) for name in TASKS}
    with running(folders) as found:
        yield found


# ------------------------------------------------------------------------------- what it asks for


def test_what_models_say_of_themselves(server: Running) -> None:
    found = {one["model_id"]: one for one in server.get("/models").json()}
    assert list(found) == list(TASKS)
    assert found["answers"]["no_answer_threshold"] == 1.5
    assert found["several"]["thresholds"] == [0.5] * 3
    assert (found["score"]["kind"], found["score"]["pair"]) == ("regression", False)
    assert found["pretrained"]["mask"] == "[MASK]"
    assert found["hostile"]["tasks"][-2:] == ["attribution", "attention"]
    assert "attribution" not in found["tags"]["tasks"]


def test_attention(server: Running) -> None:
    expected = offline(server.folders["hostile"]).inspect("w1 w2", "w3")
    found = server.post("/models/hostile/attention", {"text": "w1 w2", "text_pair": "w3"}).json()
    assert (found["layer"], found["layers"]) == (1, 1)
    assert [token["text"] for token in found["tokens"]] == list(expected.tokens)
    assert [token["part"] for token in found["tokens"]] == [None, 0, 0, None, 1, None]
    assert found["tokens"][2]["start"] == 3
    np.testing.assert_allclose(found["heads"], expected.attentions[0], atol=6e-5)


def test_attribution(server: Running) -> None:
    expected = offline(server.folders["hostile"]).attribute("w1 w2", target="c")
    found = server.post("/models/hostile/attribute", {"text": "w1 w2", "target": "c"}).json()
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-6)
    names = ("method", "target", "unit", "hidden_by", "cut")
    assert [found[name] for name in names] == [getattr(expected, name) for name in names]
    assert found["method"] == "occlusion"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("hostile/attention", {"text": "w1", "layer": 2}, 422, "layer must be from 1 to 1"),
        ("hostile/attention", {"text": "w1 " * 60}, 422, "has 62 tokens, and this encoder reads"),
        ("hostile/attention", {"text": "w1 " * 300}, 413, "shown for at most 256"),
        ("hostile/attention", {"texts": ["w1"]}, 422, "unknown field"),
        ("tags/attribute", {"text": "w1"}, 422, "does not do attribution"),
        ("hostile/attribute", {"text": "w1", "target": "x"}, 422, "none of this model's"),
        ("score/attribute", {"text": "w1", "text_pair": "w2"}, 422, "single texts"),
    ],
)
def test_what_is_refused(
    server: Running, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = server.post(f"/models/{path}", body)
    assert response.status_code == status
    assert message in response.json()["error"]


def test_a_long_text_is_more_than_the_queue_takes(tmp_path: Path) -> None:
    """Copies of it, one for each token, would keep all others waiting."""
    folders = make_folders(tmp_path, "classes")
    with running(folders, tokens=1000) as server:
        response = server.post("/attribute", {"text": "w1 " * 38})
        assert response.status_code == 413
        assert response.json()["limit"] == 1000
        assert server.post("/attribute", {"text": "w1 w2"}).status_code == 200


def test_a_graph_alone_has_no_attention(tmp_path: Path) -> None:
    bothways.export(make_folders(tmp_path, "classes")["classes"], tmp_path / "out")
    with running({"out": str(tmp_path / "out")}) as server:
        (found,) = server.get("/models").json()
        assert found["tasks"][-1] == "attribution"
        response = server.post("/attention", {"text": "w1"})
        assert response.status_code == 422
        assert str(tmp_path) not in response.text
        assert server.post("/attribute", {"text": "w1"}).status_code == 200


def test_a_browser_runs_nothing_but_the_pages_own(server: Running) -> None:
    response = server.get("/")
    policy = response.headers["content-security-policy"]
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", response.text)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", response.text)


# -------------------------------------------------------------------------------------- a browser


@dataclass
class Browser:
    """A page, and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def compute(self) -> None:
        """Press the button, and wait for the answer."""
        self.page.get_by_role("button", name="Compute").click()
        self.page.locator(
            "form [role=status]:has-text('computed in'), [role=alert]"
        ).first.wait_for()

    def fill(self, **texts: str) -> None:
        for label, text in texts.items():
            self.page.get_by_label(re.compile(f"^{label.replace('_', ' ')}")).fill(text)

    @property
    def text(self) -> str:
        return str(self.page.locator("main").inner_text())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="without playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("without Chromium")
    with api.sync_playwright() as playwright:
        # As root, which CI is, Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def looking(chromium: Any, url: str, **how: Any) -> Iterator[Browser]:
    """A page that asked nobody but its server, and said nothing to the console."""
    context = chromium.new_context(**how)
    page = context.new_page()
    page.set_default_timeout(10_000)
    found = Browser(page)
    page.on("console", lambda message: found.said.append(message.text))
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("request", lambda request: found.asked.append(request.url))
    page.goto(url)
    page.locator("main section").wait_for()
    yield found
    context.close()
    origin = "/".join(url.split("/")[:3])
    assert found.said == []
    assert all(url.startswith((origin, "data:")) for url in found.asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_every_model(server: Running, chromium: Any, name: str) -> None:
    """With the texts that the page has at first."""
    with looking(chromium, f"{server.url}/#{name}/") as browser:
        page = browser.page
        assert page.get_by_label("Model").input_value() == name
        buttons = page.get_by_role("navigation").get_by_role("button")
        assert buttons.all_inner_texts() == TASKS[name]
        for title in TASKS[name]:
            buttons.get_by_text(title, exact=True).click()
            assert page.get_by_role("heading", level=2).inner_text() == title
            browser.compute()
            assert page.get_by_role("alert").count() == 0, browser.text
            for closed in page.locator("summary").all():
                closed.click()
            page.locator("section table").first.wait_for()


@pytest.mark.slow
def test_hostile_texts_and_labels_are_shown_as_they_are(server: Running, chromium: Any) -> None:
    with looking(chromium, f"{server.url}/#hostile/text-classification") as browser:
        browser.fill(Text=HOSTILE)
        browser.compute()
        assert HOSTILE in browser.text
        assert "b&amp;c" in browser.text
        browser.page.get_by_label("Explain").select_option(HOSTILE)
        browser.page.locator("strong", has_text=HOSTILE).wait_for()
        browser.page.get_by_label("Model").select_option("answers")
        browser.fill(Question=HOSTILE, Text=HOSTILE)
        browser.compute()
        assert HOSTILE in browser.page.locator("p.text").inner_text()
        assert browser.page.locator("main").locator("img, b, script").count() == 0
        assert browser.page.title() == "bothways"


@pytest.mark.slow
def test_numbers_are_the_models(server: Running, chromium: Any) -> None:
    model = offline(server.folders["pretrained"])
    (fillings,) = model.fill_mask("w1 [MASK] w2", top=8)
    with looking(chromium, f"{server.url}/#pretrained/fill-mask") as browser:
        browser.fill(Text="w1 w2")
        browser.compute()
        assert "Write [MASK] where" in browser.page.get_by_role("alert").inner_text()
        browser.fill(Text="w1 [MASK] w2")
        browser.compute()
        rows = [
            row.split("\t")[:2] for row in browser.page.locator("tbody").inner_text().split("\n")
        ]
        expected = [[f.piece, f"{100 * f.probability:.1f} %"] for f in fillings]
        assert [row for row in rows if len(row) == 2] == expected


@pytest.mark.slow
def test_an_answer_is_marked_and_none_is_weighed(server: Running, chromium: Any) -> None:
    """Characters are counted as Python does, whatever a browser's strings are made of."""
    model, context = offline(server.folders["answers"]), "𝔘𝔫𝔦 w3 w4 w5 🙂 w6 w7"
    found = model.answer("w1 w2", context, top=20)
    best, none = next(a for a in found if a.text), next(a for a in found if not a.text)
    odds = np.log(none.probability / best.probability)
    with looking(chromium, f"{server.url}/#answers/question-answering") as browser:
        browser.fill(Question="w1 w2", Text=context)
        browser.compute()
        shown = re.search(r"scores ([\d.]+) (\w+) the .* threshold, ([\d.]+),", browser.text)
        assert shown is not None
        assert float(shown[1]) == pytest.approx(abs(odds), abs=1e-3)
        assert shown[2] == ("below" if odds < 0 else "above")
        assert float(shown[3]) == 1.5
        assert browser.page.locator("mark").inner_text() == found[0].text


@pytest.mark.slow
def test_by_keyboard_alone(server: Running, chromium: Any) -> None:
    with looking(chromium, f"{server.url}/#pretrained/fill-mask") as browser:
        page, press = browser.page, browser.page.keyboard.press
        focused = page.locator(":focus")

        def reach(name: str) -> None:
            for _ in range(30):
                press("Tab")
                shown = focused.evaluate(
                    "e => [e.tagName, e.innerText, e.name ?? '', e.labels?.[0]?.innerText ?? '']"
                )
                if any(name in part for part in shown):
                    return
            raise AssertionError(f"{name} is not reached")

        reach("Attention")
        press("Enter")
        assert page.get_by_role("heading", level=2).inner_text() == "Attention"
        assert focused.inner_text() == "Attention"  # where the reader was
        reach("Text")
        press("Control+a")
        page.keyboard.type("w1 w2 w3")
        press("Control+Enter")
        page.locator("form [role=status]:has-text('computed in')").wait_for()
        reach("Layer")
        reach("head")
        press("ArrowRight")
        assert page.get_by_role("radio", name="Head 2").is_checked()
        reach("[CLS]")
        press("ArrowDown")
        press("ArrowDown")
        assert focused.inner_text() == "w2"
        map_ = offline(server.folders["pretrained"]).inspect("w1 w2 w3").attentions[0, 1, 2]
        said = page.locator("main [role=status]", has_text="Token 3, “w2”, reads").inner_text()
        assert f"{100 * map_.max():.1f} % of {map_.argmax() + 1}" in said
        press("End")
        assert focused.inner_text() == "[SEP]"
        reach("as a table")
        press("Enter")
        page.get_by_role("table").wait_for()
        cells = page.get_by_role("table").get_by_role("row").nth(3).get_by_role("cell")
        np.testing.assert_allclose([float(c) for c in cells.all_inner_texts()], map_, atol=6e-4)


@pytest.mark.slow
def test_a_key_is_asked_for(tmp_path: Path, chromium: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "secret")
    with running(make_folders(tmp_path, "vectors")) as server:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(server.url)
        page.get_by_label("Key").fill("other")
        page.get_by_role("button", name="Go on").click()
        page.get_by_text("That is not the key.").wait_for()
        page.get_by_label("Key").fill("secret")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Compute").click()
        page.get_by_role("table").wait_for()
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inspect", "attribute"])
def test_a_saved_page_needs_no_server(
    server: Running, chromium: Any, tmp_path: Path, kind: str
) -> None:
    found = getattr(offline(server.folders["hostile"]), kind)("w1 w2 w3")
    path = found.to_html(tmp_path / "page.html")
    with looking(chromium, path.as_uri()) as browser:
        page = browser.page
        if kind == "inspect":
            page.get_by_role("button", name="w2").hover()
            assert "Token 3, “w2”, reads" in browser.text
            assert page.get_by_role("radio").count() == 2
        else:
            assert "Method: occlusion." in browser.text
        assert browser.asked == [path.as_uri()]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_accessible(server: Running, chromium: Any, scheme: str, width: int) -> None:
    axe = Path(os.environ.get("BOTHWAYS_AXE", ""))
    if not axe.is_file():
        pytest.skip("without axe-core (BOTHWAYS_AXE)")
    how = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with looking(chromium, server.url, bypass_csp=True, **how) as browser:
        page = browser.page
        page.add_script_tag(content=axe.read_text())
        for name, titles in TASKS.items():
            page.get_by_label("Model").select_option(name)
            for title in titles:
                page.get_by_role("navigation").get_by_text(title, exact=True).click()
                browser.compute()
                for closed in page.locator("summary").all():
                    closed.click()
                    page.locator("details table").wait_for()
                found = page.evaluate("async () => (await axe.run()).violations")
                assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], (name, title)
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (name, title)
