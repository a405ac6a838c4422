"use strict";
// Addresses are relative: the page may lie below the path of a model.

const POLL = 3000;         // milliseconds between two questions while nothing waits here
const FILES = 16;          // files of one request
const BYTES = 6 * 2 ** 20; // of one request, if a single file is not larger
const PAGE = 60;           // images of a class that are shown at once
const AT_ONCE = 6;         // thumbnails that are fetched at the same time
const STEPS = 200;         // that can be taken back
const IMAGE_NAME = /\.(png|jpe?g|webp|bmp|gif|tiff?|ppm|pgm)$/i;

let shown = null;          // the image that is to be labelled
let visible = false;       // its picture is there too
let named = null;          // the number of the image that the field for another class is about
let turn = 0;              // of what is shown: an older one that still waits for its picture is given up
let busy = false;          // a step is under way: keys that come now belong to no image
let known = new Map();     // labels by how they read
let limits = { images: FILES, bytes: BYTES };
let opened = null;         // the class whose images are shown
let changing = null;       // the one of them that is chosen
const addresses = new Map();  // previews, by the image's number
const person = sessionStorage.getItem("person") || crypto.getRandomValues(new Uint32Array(2)).join("-");
sessionStorage.setItem("person", person);
const STEPS_HERE = `steps ${location.pathname}`;  // of this model: others have images of the same numbers
let steps = JSON.parse(sessionStorage.getItem(STEPS_HERE) || "[]");

const asMe = (path) => `${path}${path.includes("?") ? "&" : "?"}person=${person}`;
const meant = (text) => (known.has(text) ? known.get(text) : text);

function notify(text, wrong = false, where = "said") {
  at(where).textContent = text;
  at(where).className = wrong ? "error" : "";
}

function remember(step) {
  steps = [...steps, step].slice(-STEPS);
  sessionStorage.setItem(STEPS_HERE, JSON.stringify(steps));
  at("undo").disabled = false;
}

// The queue

async function preview(number) {
  if (!addresses.has(number)) {
    const found = fetched(`label/images/${number}`).then((answer) => answer.blob()).then(URL.createObjectURL);
    addresses.set(number, found);
    found.catch(() => addresses.delete(number));
  }
  return addresses.get(number);
}

async function forgetPreviews(kept) {
  for (const [number, address] of addresses) {
    if (kept.includes(number)) continue;
    addresses.delete(number);
    URL.revokeObjectURL(await address.catch(() => ""));
  }
}

async function show(state) {
  const now = ++turn;
  limits = { images: Math.min(FILES, state.most_images), bytes: state.most_bytes };
  at("problem").hidden = !state.problem;
  at("problem").textContent = state.problem || "";
  showCounts(state);
  showClasses(state.classes);
  const [first, ...ahead] = state.images;
  document.body.classList.toggle("empty", !first);
  at("now").hidden = !first && !steps.length;
  for (const name of ["image", "keys", "other", "skip", "remove"]) at(name).hidden = !first;
  at("undo").disabled = !steps.length;
  shown = null;
  visible = false;
  if (!first) {
    at("verdict").textContent = state.labelled ? "All images have a label." : "";
    at("name").textContent = "";
    await forgetPreviews([]);
    return;
  }
  try {
    const address = await preview(first.number);
    if (now !== turn) return;
    at("image").src = address;
    await at("image").decode();
    visible = now === turn;
  } catch (error) {  // the picture of another image must not stay; this one is tried again
    addresses.delete(first.number);
    if (now === turn) {
      at("image").removeAttribute("src");
      notify(inWords(error), true);
    }
  }
  if (now !== turn) return;
  at("image").classList.toggle("tiny", at("image").naturalWidth < 200);
  at("name").textContent = first.name;
  if (named !== first.number) at("label").value = "";  // else it is typed while the picture is tried again
  named = first.number;
  shown = first;
  showKeys(first.classes);
  if (!first.classes.length && state.labelled) later(first);
  for (const one of ahead) preview(one.number).catch(() => {});
  forgetPreviews(state.images.map((one) => one.number));
}

function showCounts(state) {
  const all = state.labelled + state.waiting;
  at("work").hidden = all === 0;
  at("progress").max = Math.max(1, all);
  at("progress").value = state.labelled;
  at("labelled").textContent = state.labelled;
  at("waiting").textContent = state.waiting;
  at("accuracy").textContent = percent(state.accuracy);
  at("recent").textContent = percent(state.recent_accuracy);
  at("recent-count").textContent = state.recent;
  at("recent-part").hidden = state.recent >= state.labelled - 1;  // the first image has no prediction
}

function showKeys(classes) {
  at("verdict").textContent = classes.length ? "What is it?" : "The model knows no class yet. Name this one.";
  at("keys").replaceChildren(...classes.map((one, number) => {
    const name = reads(one.label);
    const button = make("button");
    button.type = "button";
    button.style.setProperty("--share", `${100 * one.probability}%`);
    button.append(make("kbd", number + 1), make("span", name, "name"), make("span", percent(one.probability), "share"));
    button.addEventListener("click", () => label(one.label));
    const row = make("li");
    row.append(button);
    return row;
  }));
}

function later(image) {  // the first labels are learned in a moment: then the model has classes to offer
  setTimeout(async () => {
    if (shown !== image || busy) return;
    const state = await request(asMe(`label/queue?count=1&first=${image.number}`)).catch(() => null);
    if (shown !== image || busy) return;
    const now = state?.images.find((one) => one.number === image.number);
    if (now?.classes.length) showKeys(now.classes);
    else later(image);
  }, 1000);
}

async function step(work) {
  if (busy) return;
  busy = true;
  notify("");
  const { number } = shown || {};
  try {
    await show(await work());
  } catch (error) {  // the image may have a label by now, from another person
    await request(asMe(number ? `label/queue?first=${number}` : "label/queue")).then(show).catch(() => {});
    notify(inWords(error), true);
  }
  busy = false;
}

function label(given) {
  if (!shown) return;
  if (!visible) {
    notify("Its picture is not here yet.", true);
    return;
  }
  const { number } = shown;
  step(async () => {
    const state = await request(asMe(`label/images/${number}/label`), { method: "PUT", ...asJson({ label: given }) });
    remember({ number, kind: "label" });
    notify(`Labelled as ${reads(given)}.`);
    return state;
  });
}

function skip() {
  if (!shown) return;
  const { number } = shown;
  step(async () => {
    const state = await request(asMe(`label/images/${number}/skip`), { method: "POST" });
    remember({ number, kind: "skip" });
    return state;
  });
}

function undo() {
  if (!steps.length) return;
  const last = steps[steps.length - 1];
  step(async () => {
    steps = steps.slice(0, -1);  // also if it fails: another person may have changed that image since
    sessionStorage.setItem(STEPS_HERE, JSON.stringify(steps));
    const path = `label/images/${last.number}/${last.kind === "skip" ? "skip" : "label"}`;
    const back = last.kind === "correct" ? { method: "PUT", ...asJson({ label: last.before, again: true }) } : { method: "DELETE" };
    const state = await request(asMe(path), back).catch((error) => {
      if (isSilence(error)) remember(last);  // it may be tried again
      throw error;
    });
    notify(last.kind === "correct" ? `It is ${reads(last.before)} again.` : "Taken back.");
    if (opened !== null) await openClass(opened);
    return state;
  });
}

function remove() {
  if (!shown) return;
  const { number } = shown;
  at("sure").addEventListener("close", () => {
    if (at("sure").returnValue === "yes") step(() => request(asMe(`label/images/${number}`), { method: "DELETE" }));
  }, { once: true });
  at("sure").returnValue = "no";
  at("sure").showModal();
}

// Adding images

async function filesOf(entry, path, found) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
    found.push({ file, name: path + file.name });
  } else if (entry.isDirectory) {
    const reader = entry.createReader();
    for (;;) {  // a reader gives a hundred at a time
      const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
      if (!some.length) break;
      for (const one of some) await filesOf(one, `${path}${entry.name}/`, found);
    }
  }
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  const found = [];
  if (entries.length) for (const entry of entries) await filesOf(entry, "", found);
  else for (const file of transfer.files) found.push({ file, name: file.name });
  await send(found);
}

async function send(all) {
  const images = all.filter(({ file, name }) => file.type.startsWith("image/") || IMAGE_NAME.test(name));
  if (!images.length) {
    if (all.length) notify("There is no image among these files.", true, "sent");
    return;
  }
  images.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  const total = { added: 0, known: 0, refused: [] };
  at("upload").hidden = false;
  at("upload").max = images.length;
  let done = 0;
  try {
    while (done < images.length) {
      at("upload").value = done;
      notify(`Sending ${done + 1} of ${images.length}…`, false, "sent");
      const body = new FormData();
      let bytes = 0, count = 0;
      for (; done + count < images.length && count < limits.images; count++) {
        const { file, name } = images[done + count];
        if (count && bytes + file.size > Math.min(BYTES, limits.bytes / 2)) break;
        bytes += file.size;
        body.append("image", file, name);
      }
      const answer = await request("label/images", { method: "POST", body }).catch((error) => {
        if (count > 1) throw error;
        return { added: 0, known: 0, refused: [{ name: images[done].name, detail: error.message }] };
      });
      total.added += answer.added;
      total.known += answer.known;
      total.refused.push(...answer.refused);
      done += count;
      if (!shown && total.added) await step(() => request(asMe("label/queue")));
    }
    const parts = [`${total.added} added`];
    if (total.known) parts.push(`${total.known} were here already`);
    if (total.refused.length) parts.push(`${total.refused.length} refused: ${total.refused[0].detail}`);
    notify(`${parts.join(", ")}.`.replace(/\.+$/, "."), total.refused.length > 0, "sent");
  } catch (error) {
    notify(`${total.added} added, then: ${inWords(error)}`, true, "sent");
  }
  at("upload").hidden = true;
  if (!shown) await step(() => request(asMe("label/queue")));
  else showCounts(await request(asMe(`label/queue?count=1&first=${shown.number}`)));
}

// The images of a class

function showClasses(classes) {
  known = new Map(classes.map((one) => [reads(one.label), one.label]));
  at("known").replaceChildren(...[...known.keys()].map((name) => {
    const option = make("option");
    option.value = name;
    return option;
  }));
  const some = classes.filter((one) => one.labelled > 0);
  at("by-class").hidden = !some.length;
  at("chips").replaceChildren(...some.map((one) => {
    const name = reads(one.label);
    const button = make("button", `${name} `);
    button.type = "button";
    button.setAttribute("aria-expanded", String(name === opened));
    button.append(make("span", one.labelled));
    button.addEventListener("click", () => (name === opened ? shutClass() : openClass(name)));
    const item = make("li");
    item.append(button);
    return item;
  }));
}

function shutClass() {
  opened = null;
  at("panel").hidden = true;
  for (const chip of at("chips").querySelectorAll("button")) chip.setAttribute("aria-expanded", "false");
}

async function openClass(name, first = 0) {
  opened = name;
  for (const chip of at("chips").querySelectorAll("button")) {
    chip.setAttribute("aria-expanded", String(chip.firstChild.textContent === `${name} `));
  }
  const found = await request(`label/images?label=${encodeURIComponent(name)}&first=${first}&count=${PAGE}`);
  if (opened !== name) return;
  at("panel").hidden = false;
  at("panel-title").textContent = `${name}: ${found.total} ${found.total === 1 ? "image" : "images"}`;
  at("more").hidden = first + PAGE >= found.total;
  at("more").onclick = () => openClass(name, first + PAGE).catch((error) => notify(inWords(error), true));
  const items = found.images.map((one) => classItem(one, name));
  if (first) at("grid").append(...items);
  else at("grid").replaceChildren(...items);
  const rest = items.map((item, number) => [item.querySelector("img"), found.images[number]]);
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let next = rest.shift(); next; next = rest.shift()) {
      const [picture, one] = next;
      const answer = await fetched(`label/images/${one.number}?thumbnail=true`).catch(() => null);
      if (!answer) continue;
      const address = URL.createObjectURL(await answer.blob());
      picture.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
      picture.src = address;
    }
  }));
}

function classItem(one, name) {
  const button = make("button");
  button.type = "button";
  const picture = make("img");
  picture.alt = one.name;
  const doubt = one.probability !== null && one.probability < 0.5;
  button.className = doubt ? "doubt" : "";
  button.append(picture, make("span", one.probability === null ? "…" : percent(one.probability)));
  button.setAttribute("aria-label", `${one.name}, ${name} with ${percent(one.probability)}`);
  button.addEventListener("click", () => change(one, name));
  const item = make("li");
  item.append(button);
  return item;
}

async function change(one, name) {
  const chosen = { ...one, label: name };
  changing = chosen;
  at("change-image").removeAttribute("src");
  at("change-text").textContent = `${one.name}: labelled as ${name}. The model gives that ${percent(one.probability)}.`;
  at("change-label").value = name;
  at("change-said").textContent = "";
  at("change").showModal();
  at("change-label").select();
  const address = await preview(one.number).catch(() => "");
  if (changing === chosen) at("change-image").src = address;
}

async function changed(event, work) {
  event.preventDefault();
  const chosen = changing;  // another one may be chosen before the answer comes
  const there = () => changing === chosen && at("change").open;
  try {
    await work(chosen);
    if (there()) at("change").close();
    await step(() => request(asMe(shown ? `label/queue?first=${shown.number}` : "label/queue")));
    if (opened !== null) await openClass(opened);
  } catch (error) {
    if (there()) at("change-said").textContent = inWords(error);
    else notify(inWords(error), true);
  }
}

const correct = (event) => changed(event, async ({ number, label: before }) => {
  const text = at("change-label").value.trim();
  if (!text) throw new Error("Name the class first.");
  await request(`label/images/${number}/label`, { method: "PUT", ...asJson({ label: meant(text), again: true }) });
  remember({ number, kind: "correct", before: meant(before) });
});

const back = (event) => changed(event, ({ number }) => request(`label/images/${number}/label`, { method: "DELETE" }));

async function saveLabels() {
  const address = URL.createObjectURL(await (await fetched("label/labels.csv")).blob());
  const link = make("a");
  link.href = address;
  link.download = "labels.csv";
  link.click();
  URL.revokeObjectURL(address);
}

// Keys, drops and the beginning

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.altKey || event.metaKey) return;
  const typing = event.target.matches("input[id=label]");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing) return;
  const key = event.key.toLowerCase();
  if (key === "z") undo();
  else if (event.ctrlKey) return;
  else if (/^[1-9]$/.test(key)) at("keys").querySelectorAll("button")[Number(key) - 1]?.click();
  else if (key === "s") skip();
  else if (key === "n") at("label").focus();
  else return;
  event.preventDefault();
});
at("other").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("label").value.trim();
  if (!text) {
    notify("Name the class first.", true);
    return;
  }
  label(meant(text));
  at("label").blur();  // so that the keys choose classes again
});
at("undo").addEventListener("click", undo);
at("skip").addEventListener("click", skip);
at("remove").addEventListener("click", remove);
at("change-form").addEventListener("submit", correct);
at("back").addEventListener("click", back);
at("cancel").addEventListener("click", () => at("change").close());
at("again").addEventListener("click", () => openClass(opened).catch((error) => notify(inWords(error), true)));
at("shut").addEventListener("click", shutClass);
at("csv").addEventListener("click", () => saveLabels().catch((error) => notify(inWords(error), true)));
for (const name of ["files", "folder"]) {
  at(name).addEventListener("change", (event) => {
    send([...event.target.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
    event.target.value = "";
  });
}
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); at("drop").classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => at("drop").classList.remove("over"));
document.addEventListener("drop", (event) => { event.preventDefault(); dropped(event.dataTransfer).catch((error) => notify(inWords(error), true, "sent")); });

async function refresh() {
  const idle = () => !visible && !busy;
  if (!idle()) return;
  const state = await request(asMe("label/queue"));
  if (idle()) await show(state);  // else a step has brought a newer one
}
poll(refresh, POLL);
