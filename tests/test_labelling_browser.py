"""The labelling page of ``ocil serve`` in a real browser, used as a person would."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ocil.online.model import Recipe
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
RECIPE = Recipe("er", memory=40, width=1, batch_size=4)
DROP = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type: name.endsWith(".txt") ? "text/plain" : "image/png" }));
  }
  for (const kind of ["dragenter", "dragover", "drop"]) {
    const event = new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: transfer });
    document.getElementById("drop").dispatchEvent(event);
  }
}"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path / "model", RECIPE) as service:
        yield service


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    for address in served(service):
        yield f"{address}/label"


@pytest.fixture
def protected(service: Service) -> Iterator[str]:
    for address in served(service, TOKEN):
        yield f"{address}/label"


@pytest.fixture
def visit(address: str, visit: Any) -> Any:
    """Its pages are closed before the service stops: an open page goes on asking for its queue."""
    return visit


def let_go(page: Any, *files: tuple[str, bytes]) -> None:
    page.evaluate(DROP, [(name, base64.b64encode(content).decode()) for name, content in files])


def drop(page: Any, *files: tuple[str, bytes]) -> None:
    let_go(page, *files)
    until(page, "/added|refused|no image/.test(document.getElementById('sent').textContent)")


def images(count: int) -> list[tuple[str, bytes]]:
    """Dark and light ones in turn."""
    return [(f"{n}.png", png(picture(200 * (n % 2), n))) for n in range(count)]


def shown(page: Any) -> str:
    return str(page.locator("#name").inner_text())


def name_it(page: Any, label: str) -> None:
    before = shown(page)
    page.keyboard.press("n")
    page.keyboard.type(label)
    page.keyboard.press("Enter")
    until(page, f"document.getElementById('name').textContent !== '{before}'")


def press(page: Any, key: str) -> None:
    before = shown(page)
    page.keyboard.press(key)
    until(page, f"document.getElementById('name').textContent !== '{before}'")


def text(page: Any, name: str) -> str:
    return str(page.locator(f"#{name}").inner_text())


def test_a_person_labels_with_keys(visit: Any, address: str, service: Service) -> None:
    page = visit(address)
    assert not page.locator("#now").is_visible()
    drop(page, *images(8), ("notes.txt", b"text"))
    assert text(page, "sent") == "8 added."
    until(page, "document.getElementById('image').naturalWidth === 12")
    assert text(page, "verdict") == "The model knows no class yet. Name this one."
    truth = {name: ("dark", "light")[n % 2] for n, (name, _) in enumerate(images(8))}
    name_it(page, truth[shown(page)])
    while len(service.statistics.labels) < 2:  # until both have a key
        page.wait_for_timeout(30)
        if page.locator("#keys li").count():
            names = page.locator("#keys .name").all_inner_texts()
            wanted = truth[shown(page)]
            if wanted in names:
                press(page, str(names.index(wanted) + 1))
                continue
        name_it(page, truth[shown(page)])
    assert page.evaluate("document.activeElement.id") != "label"  # digits choose classes again
    press(page, "s")
    while page.locator("#keys").is_visible():
        wanted = truth[shown(page)]
        names = page.locator("#keys .name").all_inner_texts()
        if wanted in names:
            press(page, str(names.index(wanted) + 1))
        else:
            name_it(page, wanted)
    assert text(page, "verdict") == "All images have a label."
    assert (text(page, "labelled"), text(page, "waiting")) == ("8", "0")
    assert text(page, "accuracy").endswith("%")
    saved = {name: label for name, label, _ in next(iter(service.attached)).open().labels()}  # type: ignore[attr-defined]
    assert saved == truth


def test_undo_correct_and_put_back(visit: Any, address: str, service: Service) -> None:
    page = visit(address)
    drop(page, *images(4))
    first = shown(page)
    name_it(page, "dark")
    press(page, "z")  # undo
    assert shown(page) == first
    assert service.sample(1).forgotten
    name_it(page, "dark")
    second = shown(page)
    press(page, "s")
    page.reload()  # the steps are still known
    until(page, "document.getElementById('name').textContent !== ''")
    page.locator("#undo").click()
    until(page, f"document.getElementById('name').textContent === '{second}'")
    name_it(page, "light")
    page.locator("#chips button", has_text="light").click()
    page.locator("#grid img").first.wait_for()
    assert text(page, "panel-title") == "light: 1 image"
    until(page, "document.querySelector('#grid img').naturalWidth === 12")
    page.locator("#grid button").click()
    page.locator("#change-label").fill("dark")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('panel-title').textContent === 'light: 0 images'")
    assert service.sample(3).label == "dark"
    page.keyboard.press("z")
    until(page, "document.getElementById('panel-title').textContent === 'light: 1 image'")
    assert service.sample(3).label == "light"
    page.locator("#grid button").click()
    page.get_by_role("button", name="Back to the queue").click()
    until(page, "document.getElementById('waiting').textContent === '3'")
    assert service.sample(3).forgotten
    page.locator("#remove").click()
    page.get_by_role("button", name="Keep it").click()
    page.locator("#remove").click()
    page.get_by_role("button", name="Remove it").click()
    until(page, "document.getElementById('waiting').textContent === '2'")


def test_a_folder_from_the_file_chooser_and_a_refusal(visit: Any, address: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for name, content in images(20):
        (folder / "inner" / name).write_bytes(content)
    (folder / "broken.png").write_bytes(b"no image")
    (folder / ".DS_Store").write_bytes(b"other")
    page = visit(address)
    page.locator("#folder").set_input_files(folder)
    until(page, "document.getElementById('sent').textContent.includes('refused')")
    assert "20 added, 1 refused: photos/broken.png is not a readable image" in text(page, "sent")
    assert shown(page) == "photos/inner/0.png"
    assert text(page, "waiting") == "20"


def test_labels_are_text_and_the_phone_has_no_sideways_scroll(visit: Any, address: str, service: Service) -> None:
    page = visit(address, viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True, is_mobile=True)
    drop(page, *images(3))
    page.locator("#label").fill(HOSTILE)
    page.get_by_role("button", name="Label", exact=True).tap()
    until(page, "document.getElementById('labelled').textContent === '1'")
    until(page, "document.querySelectorAll('#keys button').length === 1")  # when it is learned, with no further step
    page.locator("#label").fill("x" * 60)
    page.get_by_role("button", name="Label", exact=True).tap()
    until(page, "document.getElementById('labelled').textContent === '2'")
    assert page.locator("main b").count() == 0
    assert page.locator("img[src='x']").count() == 0
    assert HOSTILE in text(page, "chips")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    heights = page.evaluate("[...document.querySelectorAll('.answer button')].map((b) => b.offsetHeight)")
    assert min(height for height in heights if height) >= 40  # large enough for a thumb
    page.locator("#keys button").first.tap()
    until(page, "document.getElementById('waiting').textContent === '0'")
    assert service.writer.acknowledged == 3


def test_the_token_is_asked_for_and_images_come_with_it(protected: str, visit: Any) -> None:
    page = visit(protected, refused="401")
    page.get_by_role("dialog").wait_for()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    drop(page, *images(1))
    until(page, "document.getElementById('image').naturalWidth === 12")


def test_a_request_that_was_on_its_way_takes_the_token_that_was_given_since(protected: str, visit: Any) -> None:
    page = visit(protected, refused="401")
    held: list[Any] = []
    page.route("**/label/images", lambda route: held.append(route), times=1)
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    let_go(page, *images(1))
    until(page, lambda: held)
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    until(page, "sessionStorage.getItem('token') !== null")
    held[0].continue_()  # without a token, as it was asked
    until(page, "document.getElementById('sent').textContent === '1 added.' || document.getElementById('ask').open")
    assert text(page, "sent") == "1 added."


def test_an_image_without_its_picture_gets_no_label(visit: Any, address: str, service: Service) -> None:
    """The picture of the image before it must not be taken for its own."""
    page = visit(address, refused="429", alone=True)
    drop(page, *images(1))
    until(page, "document.getElementById('image').naturalWidth === 12")
    busy = '{"detail": "wait a moment."}'
    page.route("**/label/images/2", lambda route: route.fulfill(status=429, content_type="application/json", body=busy))
    drop(page, *images(2)[1:])
    name_it(page, "dark")
    assert shown(page) == "1.png"
    assert not page.locator("#image").get_attribute("src")
    assert text(page, "said") == "wait a moment."
    page.keyboard.press("n")
    page.keyboard.type("dark")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('said').textContent === 'Its picture is not here yet.'")
    with page.expect_response("**/label/images/2"):  # it is tried again, and what has been typed stays
        pass
    assert page.locator("#label").input_value() == "dark"
    page.unroute("**/label/images/2")
    until(page, "document.getElementById('image').naturalWidth === 12 && document.getElementById('image').src !== ''")
    assert (service.writer.acknowledged, shown(page)) == (1, "1.png")


def test_a_step_that_was_not_taken_back_for_want_of_an_answer_stays(visit: Any, address: str) -> None:
    page = visit(address, refused="502", alone=True)
    drop(page, *images(2))
    name_it(page, "dark")
    of_a_proxy = {"status": 502, "content_type": "text/html", "body": "<html>Bad gateway</html>"}
    page.route("**/label/images/*/label?*", lambda route: route.fulfill(**of_a_proxy))
    page.locator("#undo").click()
    until(page, "document.getElementById('said').className === 'error'")
    page.unroute("**/label/images/*/label?*")
    page.locator("#undo").click()
    until(page, "document.getElementById('said').textContent === 'Taken back.'")
    until(page, "document.getElementById('labelled').textContent === '0'")


def test_a_slow_picture_does_not_take_the_place_of_the_chosen_image(visit: Any, address: str) -> None:
    page = visit(address, alone=True)
    drop(page, *images(2))
    name_it(page, "night")
    name_it(page, "night")
    page.locator("#chips button").click()
    until(page, "document.querySelectorAll('#grid img[src]').length === 2")
    held: list[Any] = []
    page.route("**/label/images/1", lambda route: held.append(route), times=1)
    page.get_by_role("button", name="0.png").click()
    until(page, lambda: held)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="1.png").click()
    until(page, "document.getElementById('change-image').naturalWidth === 12")
    seen = page.locator("#change-image").get_attribute("src")
    with page.expect_response("**/label/images/1"):
        held[0].continue_()
    page.wait_for_timeout(100)
    assert page.locator("#change-image").get_attribute("src") == seen


def test_undo_stays_with_the_model_of_the_step(visit: Any, tmp_path: Path) -> None:
    """Images of another model have the same numbers, and the pages of all models share what the tab keeps."""
    from ocil.serve.models import Models

    with running(tmp_path / "cats", RECIPE) as cats, running(tmp_path / "dogs", RECIPE) as dogs:
        for address in served_app(Models({"cats": cats, "dogs": dogs})):
            page = visit(f"{address}/models/cats/label")
            drop(page, *images(2))
            name_it(page, "cat")
            page.goto(f"{address}/models/dogs/label")
            drop(page, *images(2))
            until(page, "document.getElementById('image').naturalWidth === 12")
            assert page.locator("#undo").is_disabled()
            page.goto(f"{address}/models/cats/label")
            until(page, "document.getElementById('image').naturalWidth === 12")
            assert page.locator("#undo").is_enabled()
            page.close()
