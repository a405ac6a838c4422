"""The page of ``ocil serve`` in a real browser: drop, predict, correct, see it learned; no errors, no network."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ocil.online.model import Recipe
from ocil.online.vectors import VectorFormat
from ocil.serve.service import Service
from tests.browsing import needs_browser, served, served_app, until
from tests.serving import picture, png, running

pytestmark = [
    pytest.mark.slow,
    needs_browser("fastapi", "uvicorn", "python_multipart"),
    pytest.mark.usefixtures("quick_convolution"),
]

HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"
TOKEN = "a-token-of-some-length"
DROP = """([selector, content]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "image.png", { type: "image/png" }));
  const target = document.querySelector(selector);
  for (const kind of ["dragenter", "dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: transfer }));
  }
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("model")) as service:
        yield service


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    yield from served(service)


def drop(page: Any, brightness: int, number: int = 0) -> None:
    page.evaluate(DROP, ["#drop", base64.b64encode(png(picture(brightness, number))).decode()])
    until(page, "!['No image yet.', 'Looking…'].includes(document.getElementById('verdict').textContent)")


def teach(page: Any, label: str) -> None:
    page.locator("#label").fill(label)
    page.get_by_role("button", name="Learn it").click()
    until(page, "document.getElementById('said').textContent.startsWith('Learned')")


def number(page: Any, name: str) -> int:
    return int(page.locator(f"#{name}").inner_text())


def test_drop_predict_correct_and_see_it_learned(visit: Any, address: str, service: Service) -> None:
    page = visit(address)
    drop(page, 0)
    assert page.locator("#verdict").inner_text() == "It knows no class yet. Name this one."
    assert page.locator("#preview").is_visible()
    teach(page, "dark")
    until(page, "document.getElementById('samples').textContent === '1'")
    assert page.locator("#said").inner_text() == "Learned as dark: sample 1."
    drop(page, 200)
    assert page.locator("#verdict").inner_text().startswith("dark, 100.0 %")
    assert page.locator("#label").input_value() == "dark"
    teach(page, "light")  # a correction
    until(page, "document.getElementById('samples').textContent === '2'")
    for count in range(3, 7):
        drop(page, 200 * (count % 2), count)
        teach(page, ("dark", "light")[count % 2])
        until(page, f"document.getElementById('samples').textContent === '{count}'")
    assert number(page, "class-count") == 2
    rows = page.locator("#table tbody tr")
    assert rows.locator("th").all_inner_texts() == ["dark", "light"]
    assert rows.nth(0).locator("td").nth(0).inner_text() == "3"
    until(page, "document.querySelectorAll('#table tbody img').length === 6")
    widths = page.evaluate("[...document.querySelectorAll('#table tbody img')].map((i) => i.naturalWidth)")
    assert widths == [12] * 6
    assert page.locator("#accuracy").inner_text() == f"{100 * (service.statistics.counts.accuracy or 0):.1f} %"
    assert page.locator("#bias").is_visible()
    assert "New are the 1 met last" in page.locator("#bias-text").inner_text()
    shown = page.locator("#classes li span:first-child").all_inner_texts()
    assert sorted(shown) == ["dark", "light"]
    assert service.statistics.samples == 6


def test_a_label_that_is_html_is_text(visit: Any, address: str, service: Service) -> None:
    page = visit(address)
    before = service.statistics.samples
    drop(page, 100)
    teach(page, HOSTILE)
    until(page, f"document.getElementById('samples').textContent === '{before + 1}'")
    drop(page, 101)
    page.locator("#classes li", has_text=HOSTILE).first.wait_for()
    assert HOSTILE in page.locator("#table").inner_text()
    assert page.locator("#said").inner_text() == ""
    assert page.locator("main b").count() == 0
    assert page.locator("img[src='x']").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2  # its own


def test_by_keyboard_and_file_chooser(visit: Any, address: str, service: Service) -> None:
    page = visit(address, alone=True)
    before = service.statistics.samples
    choosers: list[Any] = []
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    end = time.monotonic() + 300
    while not choosers:  # a page that has just been opened may miss a key
        assert time.monotonic() < end
        page.locator("#file").focus()
        page.keyboard.press("Space")
        page.wait_for_timeout(300)
    choosers[0].set_files({"name": "x.png", "mimeType": "image/png", "buffer": png(picture(50))})
    page.locator("#teach").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "label"
    page.locator("#label").fill("gray")
    page.keyboard.press("Enter")
    until(page, f"document.getElementById('samples').textContent === '{before + 1}'")
    assert page.locator("#said").get_attribute("aria-live") == "polite"


def test_a_sample_whose_answer_is_lost_is_learned_once(visit: Any, address: str, service: Service) -> None:
    """And what was typed for an image that was chosen since stays."""
    page = visit(address, refused="502", alone=True)
    before = service.writer.acknowledged
    held: list[Any] = []
    page.route("**/learn?wait=true", lambda route: held.append(route), times=2)
    drop(page, 30, 71)
    page.locator("#label").fill("lost")
    page.get_by_role("button", name="Learn it").click()
    until(page, "document.getElementById('said').textContent === 'Learning…'")
    until(page, lambda: held)
    assert held[0].fetch().status == 200
    held[0].fulfill(status=502, content_type="application/json", body='{"detail": "the proxy lost the answer."}')
    page.get_by_text("the proxy lost the answer.").wait_for()
    page.get_by_role("button", name="Learn it").click()
    until(page, lambda: len(held) == 2)
    drop(page, 180, 72)
    page.locator("#label").fill("another one")
    held[1].continue_()
    until(page, "document.getElementById('said').textContent.startsWith('Learned as lost')")
    until(page, "!document.getElementById('learn').disabled")
    assert page.locator("#label").input_value() == "another one"
    assert service.writer.acknowledged == before + 1


def test_a_file_that_is_no_image_is_reported(visit: Any, address: str) -> None:
    page = visit(address, refused="422")
    page.locator("#file").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"not an image"})
    until(page, "document.getElementById('verdict').textContent.includes('not a readable image')")
    assert not page.locator("#teach").is_visible()


def test_the_same_file_can_be_chosen_again(visit: Any, address: str, tmp_path: Path) -> None:
    """Its content may have changed since. A browser reports no choice of the file that is there already."""
    page = visit(address, refused="422")
    file = tmp_path / "x.png"
    for content, verdict in ((b"not an image", "/not a readable image/"), (png(picture(50)), "/%|no class yet/")):
        file.write_bytes(content)
        with page.expect_file_chooser() as chooser:
            page.locator("#file").click()
        chooser.value.set_files(file)
        assert page.input_value("#file").endswith("x.png")  # its name stays beside the button
        until(page, f"{verdict}.test(document.getElementById('verdict').textContent)")


def test_a_refusal_is_not_called_silence(visit: Any, address: str) -> None:
    page = visit(address, refused="429", alone=True)
    too_many = '{"detail": "too many requests: try again in 2 seconds."}'
    page.route("**/status", lambda route: route.fulfill(status=429, content_type="application/json", body=too_many))
    page.get_by_text("The service refuses: too many requests: try again in 2 seconds.").wait_for()
    page.evaluate("showProblem(new TypeError('Failed to fetch'))")
    assert page.locator("#problem").inner_text() == "The service does not answer: Failed to fetch"


def test_a_phone_and_the_dark(visit: Any, address: str) -> None:
    page = visit(address, viewport={"width": 340, "height": 700}, color_scheme="dark")
    drop(page, 30)
    page.locator("#table tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 340
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"


def test_the_docs_page(visit: Any, address: str) -> None:
    page = visit(f"{address}/docs")
    assert page.get_by_role("heading", name="POST /learn").is_visible()
    assert page.evaluate("getComputedStyle(document.body).margin") != "8px"  # its style sheet was let in


def test_the_token_is_asked_for(visit: Any, service: Service) -> None:
    for address in served(service, TOKEN):
        page = visit(address, refused="401")
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        for wrong in ("wrong", f"“{TOKEN}”"):  # the second one cannot even be sent
            page.locator("#token").fill(wrong)
            page.keyboard.press("Enter")
            until(page, "document.getElementById('ask').open && document.getElementById('token').value === ''")
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        until(page, "document.getElementById('samples').textContent !== '–'")
        assert not dialog.is_visible()
        page.close()


def test_another_token_can_be_given_where_the_first_is_for_other_models(visit: Any, tmp_path: Path) -> None:
    from ocil.serve.models import Models
    from ocil.serve.tokens import Access, add_token

    tokens = tmp_path / "tokens.toml"
    fits, other = add_token(tokens, "fits", "read", ("birds",)), add_token(tokens, "other", "read", ("texts",))
    with running(tmp_path / "birds") as birds:
        for address in served_app(Models({"birds": birds}, Access(file=tokens))):
            page = visit(address, "401")
            until(page, "document.getElementById('ask').open")
            another = page.get_by_role("button", name="Another token")
            assert another.count() == 0, "it is hidden where no token was given"
            page.locator("#token").fill(other)
            page.keyboard.press("Enter")
            until(page, "document.getElementById('count').textContent.startsWith('This token is for none')")
            another.click()
            page.keyboard.press("Escape")
            assert page.evaluate("sessionStorage.getItem('token')") == other, "nothing given, nothing changed"
            another.click()
            page.locator("#token").fill(fits)
            with page.expect_navigation():  # the page loads itself again
                page.keyboard.press("Enter")
            page.get_by_text("1 of 1 ready").wait_for()


def test_another_token_can_be_given_on_the_pages_of_a_model(visit: Any, service: Service, tmp_path: Path) -> None:
    from ocil.serve.app import create_app
    from ocil.serve.tokens import Access, add_token

    tokens = tmp_path / "tokens.toml"
    read, write = add_token(tokens, "reads", "read", ()), add_token(tokens, "writes", "write", ())
    for address in served_app(create_app(service, Access(file=tokens))):
        for place in ("", "/label"):
            page = visit(f"{address}{place}", "401")
            until(page, "document.getElementById('ask').open")
            page.locator("#token").fill(read)
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Another token").click()
            page.locator("#token").fill(write)
            with page.expect_navigation():  # the page loads itself again
                page.keyboard.press("Enter")
            assert page.evaluate("sessionStorage.getItem('token')") == write
            page.close()


def test_a_model_of_vectors(visit: Any, tmp_path: Path) -> None:
    with running(tmp_path, Recipe("er", memory=20, batch_size=4), VectorFormat(3)) as service:
        for address in served(service):
            page = visit(address)
            until(page, "document.getElementById('verdict').textContent === 'No vector yet.'")
            assert not page.locator("#drop").is_visible()
            page.locator("#vector").fill("1, 2")
            page.get_by_role("button", name="Predict").click()
            assert page.locator("#verdict").inner_text().startswith("Give 3 numbers")
            page.locator("#vector").fill("[0.5, -1e-2, 3]")
            page.get_by_role("button", name="Predict").click()
            until(page, "document.getElementById('verdict').textContent.startsWith('It knows no class yet')")
            teach(page, "spam")
            until(page, "document.getElementById('verdict').textContent.startsWith('spam, 100.0 %')")
        assert service.model.learner.memory.images[0].tolist() == pytest.approx([0.5, -0.01, 3.0])


def test_the_list_of_several_models(visit: Any, tmp_path: Path) -> None:
    from ocil.serve.models import Models
    from ocil.serve.tokens import Access, add_token

    tokens = tmp_path / "tokens.toml"
    own = add_token(tokens, "own", "read", ("birds", "texts"))
    with (
        running(tmp_path / "birds") as birds,
        running(tmp_path / "texts", Recipe("er", memory=20, batch_size=4), VectorFormat(3)) as texts,
        running(tmp_path / "secret") as secret,
    ):
        services = {"birds": birds, "texts": texts, "secret": secret}
        for address in served_app(Models(services, Access(file=tokens))):
            page = visit(address, "401")
            until(page, "document.getElementById('ask').open")
            page.locator("#token").fill(own)
            page.get_by_role("button", name="Go on").click()
            rows = page.locator("#models tbody tr")
            rows.first.wait_for()
            assert [text.split("\t")[:3] for text in rows.all_inner_texts()] == [
                ["birds", "ready", "er"],
                ["texts", "ready", "er"],
            ]
            assert page.locator("#count").inner_text() == "2 of 2 ready"
            texts.trainer._fail("the loss is not finite any more.")
            until(page, "document.getElementById('count').textContent === '1 of 2 ready'")
            assert "the loss is not finite" in rows.nth(1).inner_text()
            page.set_viewport_size({"width": 390, "height": 600})  # no word is cut in two
            assert all(box.bounding_box()["height"] < 50 for box in page.locator("#models thead th").all())
            assert rows.nth(0).get_by_role("link", name="label").count() == 1
            assert rows.nth(1).get_by_role("link", name="label").count() == 0
            page.get_by_role("link", name="birds").click()
            page.wait_for_url(f"{address}/models/birds/")
            until(page, "document.getElementById('model')?.textContent.startsWith('er, images')")
            assert page.url == f"{address}/models/birds/"
