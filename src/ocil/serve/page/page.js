"use strict";
// Whatever comes from the service is shown as text: textContent, value, and image addresses that it made itself.

const POLL = 2000;

let image = null;        // the file that is shown
let vector = null;       // or the numbers that were given
let size = null;         // numbers of a vector, for a model that takes vectors
let preview = null;      // its address, to be given back
let known = new Map();   // labels by how they read: a class may be called by a number
let thumbnails = new Map();
let seen = -1;           // samples that the thumbnails are of
let asking = 0;
let unanswered = null;   // what was sent to be learned without an answer, and its key: sent again, it is learned once

function notify(text, wrong = false) {
  at("said").textContent = text;
  at("said").className = wrong ? "error" : "";
}

async function choose(file) {
  if (!file) return;
  image = file;
  if (preview) URL.revokeObjectURL(preview);
  preview = URL.createObjectURL(file);
  at("preview").src = preview;
  at("preview").hidden = false;
  at("hint").hidden = true;
  at("teach").hidden = false;
  at("label").value = "";
  notify("");
  await predict();
}

async function predict() {
  const turn = ++asking;
  at("verdict").textContent = "Looking…";
  at("classes").replaceChildren();
  try {
    const [found] = (await request("predict?top=5", { method: "POST", ...question() })).predictions;
    if (turn === asking) showPrediction(found);
  } catch (error) {
    if (turn !== asking) return;
    at("verdict").textContent = inWords(error);
    at("teach").hidden = true;
  }
}

function question() {
  if (vector) return asJson({ vectors: [vector] });
  const body = new FormData();
  body.append("image", image);
  return { body };
}

async function chooseVector() {
  const words = at("vector").value.split(/[\s,;[\]]+/).filter(Boolean);
  vector = words.map(Number);
  at("classes").replaceChildren();
  at("teach").hidden = true;
  if (vector.length !== size || !vector.every(Number.isFinite)) {
    at("verdict").textContent = `Give ${size} numbers with commas or blanks between them; these are ${words.length}.`;
    vector = null;
    return;
  }
  at("teach").hidden = false;
  at("label").value = "";
  notify("");
  await predict();
}

function showPrediction(found) {
  if (!found.classes.length) {
    at("verdict").textContent = "It knows no class yet. Name this one.";
    return;
  }
  at("verdict").textContent = `${reads(found.label)}, ${percent(found.probability)}`;
  at("classes").replaceChildren(...found.classes.map((one) => {
    const row = make("li");
    const bar = make("meter");
    bar.max = 1;
    bar.value = one.probability;
    bar.setAttribute("aria-label", `${reads(one.label)}: ${percent(one.probability)}`);
    row.append(make("span", reads(one.label)), bar, make("span", percent(one.probability)));
    return row;
  }));
  if (!at("label").value) at("label").value = reads(found.label);  // else it was typed while the answer was on its way
}

async function asBase64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let first = 0; first < bytes.length; first += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(first, first + 0x8000));
  }
  return btoa(text);
}

function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function learn(event) {
  event.preventDefault();
  const text = at("label").value.trim();
  if (!(image || vector) || !text) {
    notify("Name the class first.", true);
    return;
  }
  const label = known.has(text) ? known.get(text) : text;
  const input = vector || image;  // another one may be chosen before the answer comes
  at("learn").disabled = true;
  notify("Learning…");
  try {
    const sample = vector ? { vector, label } : { image: await asBase64(image), label };
    if (unanswered?.input !== input || unanswered.label !== label) unanswered = { input, label, key: newKey() };
    const { body, headers } = asJson({ samples: [sample] });
    headers["Idempotency-Key"] = unanswered.key;
    const answer = await request("learn?wait=true", { method: "POST", body, headers });
    unanswered = null;
    notify(answer.applied ? `Learned as ${text}: sample ${answer.first}.` : `Kept as ${text}: sample ${answer.first} waits its turn.`);
    await Promise.all([refresh(), input === (vector || image) ? predict() : null]);
  } catch (error) {
    notify(inWords(error), true);
  }
  at("learn").disabled = false;
}

async function refresh() {
  const status = await request("status");
  show(status);
  if (status.model_samples !== seen && status.queue === 0) await refreshMemory();
}

async function refreshMemory() {
  const memory = await request("memory?per_class=6&count=100");
  seen = memory.model_samples;
  thumbnails = new Map(memory.classes.map((one) => [reads(one.label), one.images]));
  for (const row of at("table").tBodies[0].rows) fillThumbnails(row);
}

function fillThumbnails(row) {
  const images = (thumbnails.get(row.dataset.label) || []).map((address) => {
    const thumbnail = make("img");
    thumbnail.src = address;
    thumbnail.alt = `a stored image of ${row.dataset.label}`;
    return thumbnail;
  });
  row.lastElementChild.replaceChildren(...images);
}

function show(status) {
  showKind(status);
  at("problem").hidden = !status.problem;
  at("problem").textContent = status.problem || "";
  at("samples").textContent = status.model_samples;
  at("class-count").textContent = status.classes.length;
  at("accuracy").textContent = percent(status.accuracy);
  at("recent").textContent = percent(status.recent_accuracy);
  at("recent-name").textContent = `accuracy, last ${status.recent}`;
  at("queue").textContent = status.queue;
  at("memory-use").textContent = `${status.memory_stored} of ${status.memory_size}`;
  showBias(status.bias);
  showClasses(status.classes);
}

function showKind(status) {
  size = status.vector;
  at("label-link").hidden = size !== null;
  at("drop").hidden = size !== null;
  at("numbers").hidden = size === null;
  if (size !== null) {
    at("title").textContent = "Give it a vector, tell it what it is";
    at("model").textContent = `${status.method}, vectors of ${size} numbers`;
    at("vector-name").textContent = `A vector of ${size} numbers`;
    if (!vector && at("verdict").textContent === "No image yet.") at("verdict").textContent = "No vector yet.";
    return;
  }
  const [height, width, channels] = status.image;
  at("model").textContent = `${status.method}, images of ${height}×${width} in ${channels === 1 ? "gray" : "colour"}`;
}

function showBias(bias) {
  at("bias").hidden = bias === null;
  if (bias === null) {
    at("bias-text").textContent = "Not enough samples yet.";
    return;
  }
  const lean = bias.predicted - bias.occur;
  const verdict = Math.abs(lean) < 0.05 ? "Predictions lean to neither side."
    : `Predictions lean to ${lean > 0 ? "new" : "old"} classes by ${percent(Math.abs(lean))}.`;
  at("bias-text").textContent = `${verdict} New are the ${bias.new_classes} met last; over the last ${bias.scored} samples of known classes.`;
  const values = { occur: bias.occur, predicted: bias.predicted, old: bias.accuracy_old, new: bias.accuracy_new };
  for (const [name, value] of Object.entries(values)) {
    at(name).value = value ?? 0;
    at(name).setAttribute("aria-label", percent(value));
    at(`${name}-text`).textContent = percent(value);
  }
}

function showClasses(classes) {
  const names = classes.map((one) => reads(one.label));
  if (names.join("\n") !== [...known.keys()].join("\n")) {
    known = new Map(classes.map((one) => [reads(one.label), one.label]));
    at("known").replaceChildren(...names.map((name) => {
      const option = make("option");
      option.value = name;
      return option;
    }));
    at("table").tBodies[0].replaceChildren(...names.map((name) => {
      const row = make("tr");
      row.dataset.label = name;
      const heading = make("th", name);
      heading.scope = "row";
      row.append(heading, make("td"), make("td"), make("td"), make("td", undefined, "thumbs"));
      fillThumbnails(row);
      return row;
    }));
  }
  classes.forEach((one, number) => {
    const cells = at("table").tBodies[0].rows[number].cells;
    cells[1].textContent = one.learned;
    cells[2].textContent = one.learned ? percent(one.correct / one.learned) : "–";
    cells[3].textContent = one.stored;
  });
}

const drop = at("drop");
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  at("file").files = event.dataTransfer.files;  // so that its name is shown
  choose(event.dataTransfer.files[0]);
});
at("file").addEventListener("click", (event) => { event.target.value = ""; });  // so that the same file can be chosen again
at("file").addEventListener("change", (event) => choose(event.target.files[0]));
document.addEventListener("paste", (event) => { if (size === null) choose(event.clipboardData.files[0]); });
at("ask-vector").addEventListener("click", chooseVector);
at("teach").addEventListener("submit", learn);
at("refresh").addEventListener("click", () => refreshMemory().catch((error) => notify(inWords(error), true)));
poll(refresh, POLL);
