"""The page in a real Chromium, before a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from page_browser import opened, take_picture
from page_process import PHOTOS, ROOT, PageThread, pixels_of
from patience import PATIENCE_S
from PIL import Image

from onestream.preprocess import compile
from onestream.serving.pipeline import Pipeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.needs_chromium, pytest.mark.needs_triton, pytest.mark.slow]

COFFEE = PHOTOS / "coffee.jpg"


@pytest.fixture
def tab(browser: Browser, page: PageThread) -> Iterator[Page]:
    """The page, in a browser context of its own, which may ask nobody else and must not complain."""
    asked: list[str] = []
    complaints: list[str] = []

    def watch(opening: Page) -> None:
        opening.on("request", lambda request: asked.append(request.url))
        opening.on("pageerror", lambda error: complaints.append(str(error)))

    with opened(browser, page.url, watch) as tab:
        # The first of the list may be another test's.
        tab.get_by_label("Pipeline").select_option("classify")
        yield tab
    assert page.url in asked
    assert [url for url in asked if not url.startswith((page.url, "data:", "blob:"))] == []
    assert complaints == []


def give(tab: Page, path: Path) -> None:
    """Choose a file as a user does, and wait for what the page says about it."""
    with tab.expect_file_chooser() as chooser:
        tab.get_by_role("button", name="Choose a file").click()
    chooser.value.set_files(path)
    wait_for(tab, path.name)


def wait_for(tab: Page, name: str) -> None:
    tab.get_by_text(f"{name}: done.").or_(tab.get_by_role("alert")).filter(visible=True).wait_for()


def wait_until(tab: Page, condition: str) -> None:
    """Ask until it holds: Playwright's own wait needs ``eval``, which the page forbids."""
    deadline = monotonic() + PATIENCE_S
    while not tab.evaluate(condition):
        assert monotonic() < deadline, f"in vain: {condition}"
        tab.wait_for_timeout(50)


def shown(tab: Page, element: str) -> Any:
    """The pixels of a picture on the page."""
    source = tab.locator(element).get_attribute("src")
    assert source is not None
    return pixels_of(source)


def test_a_photo_is_shown_as_the_network_saw_it_with_answer_steps_and_heat_maps(tab: Page) -> None:
    give(tab, COFFEE)
    label, score = tab.locator("#answer li").first.inner_text().split()
    assert label == "espresso"
    assert 0.9 < float(score) < 1
    assert tab.locator("#original-note").inner_text() == "coffee.jpg, 600 × 400, 73 kB"

    seen = shown(tab, "#seen")
    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    (reference,) = compile(definition.pixels(), backend="reference").run([COFFEE.read_bytes()])
    np.testing.assert_array_equal(seen, reference)
    assert tab.locator("#seen").evaluate("image => [image.naturalWidth, image.naturalHeight]") == [224, 224]
    assert "the output of classify_preprocess on the server" in tab.locator("#seen-note").inner_text()

    assert tab.locator("#time-note").inner_text().startswith("The network is in float32. ")

    # Six pictures of 224 pixels, with a gap after each.
    assert shown(tab, "#training").shape == (224, 6 * 228 + 4, 3)
    assert tab.locator("#variations li").count() == 5
    assert tab.locator("#training").is_visible()

    maps = tab.locator("#maps figure")
    assert maps.count() == 4
    assert "at most 0 levels apart" in maps.nth(1).inner_text()
    assert re.search(r"OpenCV.*at most \d\d levels apart", maps.nth(2).inner_text(), re.DOTALL)
    loaded = "images => images.every(image => image.complete && image.naturalWidth === 224)"
    assert tab.locator("#maps img").evaluate_all(loaded)


def test_a_photo_can_be_dropped_and_pasted(tab: Page) -> None:
    for kind, where in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        tab.evaluate(
            """async ([kind, where]) => {
              const blob = await (await fetch("api/samples/coffee.jpg")).blob();
              const transfer = new DataTransfer();
              transfer.items.add(new File([blob], `${kind}.jpg`, { type: blob.type }));
              const init = { bubbles: true, cancelable: true, [where]: transfer };
              const event = kind === "drop" ? new DragEvent(kind, init) : new ClipboardEvent(kind, init);
              document.getElementById("drop").dispatchEvent(event);
            }""",
            [kind, where],
        )
        tab.get_by_text(f"{kind}.jpg: done.").wait_for()
        assert "espresso" in tab.locator("#answer").inner_text()


def test_a_picture_of_the_webcam(tab: Page) -> None:
    tab.get_by_role("button", name="Use the webcam").click()
    wait_until(tab, "document.getElementById('video').videoWidth > 0")
    size = tab.locator("#video").evaluate("video => [video.videoWidth, video.videoHeight]")
    tab.get_by_role("button", name="Take the picture").click()
    tab.get_by_text("webcam.png: done.").wait_for()
    wait_until(tab, "document.getElementById('original').naturalWidth > 0")
    assert tab.locator("#original").evaluate("image => [image.naturalWidth, image.naturalHeight]") == size
    assert tab.locator("#answer li").count() == 5
    assert not tab.locator("#camera").is_visible()
    assert tab.locator("#video").evaluate("video => video.srcObject") is None, "the camera is let go"


def test_the_matte_pipeline_shows_the_composed_picture(tab: Page) -> None:
    tab.get_by_label("Pipeline").select_option("matte")
    give(tab, PHOTOS / "astronaut.jpg")
    assert shown(tab, "#composed").shape == (512, 512, 3)
    assert shown(tab, "#matte").shape == (256, 256)
    tab.get_by_label("Pipeline").select_option("classify_fused")
    tab.locator("#answer li").first.wait_for()
    steps = [name.split("\n")[0] for name in tab.locator("#parts th").all_inner_texts()]
    assert steps == ["all steps", "queue", "transfer"]


def test_objects_have_boxes_on_the_picture(tab: Page) -> None:
    tab.get_by_label("Pipeline").select_option("detect")
    give(tab, COFFEE)
    names = tab.locator("#objects .label").all_inner_texts()
    assert names[:2] == ["cup", "dining table"]
    assert tab.locator("#boxes text").all_text_contents() == names[::-1], "the best lies on top"
    wait_until(tab, "document.getElementById('original').naturalWidth > 0")
    # The box as the list has it, in the picture's pixels, and where it is on the screen.
    left, top, right, bottom = map(int, tab.locator("#objects small").first.inner_text().split(", "))
    picture = tab.locator("#original").bounding_box()
    box = tab.locator("#boxes polygon").last.bounding_box()
    assert picture is not None
    assert box is not None
    scale = min(picture["width"] / 600, picture["height"] / 400)
    x0 = picture["x"] + (picture["width"] - 600 * scale) / 2
    y0 = picture["y"] + (picture["height"] - 400 * scale) / 2
    # A pixel for the rounding in the list, and half of the line's width, which browsers count or not.
    assert box["x"] == pytest.approx(x0 + left * scale, abs=scale + 3)
    assert box["y"] == pytest.approx(y0 + top * scale, abs=scale + 3)
    assert box["width"] == pytest.approx((right - left) * scale, abs=scale + 5)
    assert box["height"] == pytest.approx((bottom - top) * scale, abs=scale + 5)
    tab.get_by_label("Pipeline").select_option("classify")
    tab.get_by_text("espresso", exact=True).wait_for()
    assert tab.locator("#boxes polygon").count() == 0


def test_it_is_used_by_keyboard_on_a_narrow_screen_in_the_dark(browser: Browser, page: PageThread) -> None:
    with opened(browser, page.url, viewport={"width": 400, "height": 800}, color_scheme="dark") as tab:
        reached = []
        for _ in range(9):
            tab.keyboard.press("Tab")
            reached.append(tab.evaluate("document.activeElement.id || document.activeElement.dataset.name"))
        assert reached[:3] == ["form", "open", "webcam"]
        assert reached[3:] == [f"{name}.jpg" for name in ("astronaut", "cat", "coffee", "flower", "rocket", "temple")]
        tab.keyboard.press("Enter")
        tab.get_by_text("temple.jpg: done.").wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        is_named = "one => one.alt || one.ariaLabel || one.title || one.labels?.length || one.textContent"
        assert tab.locator("img, button, select, input").evaluate_all(f"all => all.every({is_named})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks(browser: Browser, page: PageThread, scheme: str) -> None:
    pairs = [("text", "ground"), ("quiet", "ground"), ("text", "card"), ("quiet", "card"), ("bad", "card")]
    with opened(browser, page.url, color_scheme=scheme) as tab:
        for text, ground in [*pairs, ("bad", "bad-ground"), ("on-accent", "accent")]:
            one, other = sorted(_luminance(tab, name) for name in (text, ground))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (text, ground)


def _luminance(tab: Page, name: str) -> float:
    """WCAG's relative luminance of a colour of the style sheet."""
    color = tab.evaluate(
        """name => {
          document.body.style.color = `var(--${name})`;
          return getComputedStyle(document.body).color;
        }""",
        name,
    )
    levels = np.array([int(level) for level in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_the_picture_in_the_docs_can_be_made_anew(browser: Browser, page: PageThread, tmp_path: Path) -> None:
    take_picture(browser, page.url, tmp_path / "page.jpg")
    assert (tmp_path / "page.jpg").stat().st_size < 300_000
    with Image.open(tmp_path / "page.jpg") as now, Image.open(ROOT / "docs" / "demo-page.jpg") as committed:
        assert now.width == committed.width == 1180
