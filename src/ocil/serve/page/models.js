"use strict";
// The list of models. Whatever comes from the service is shown as text: textContent, and addresses that are encoded.

const POLL = 2000;

function link(text, address) {
  const found = make("a", text);
  found.href = address;
  return found;
}

function row(model) {
  const place = `models/${encodeURIComponent(model.name)}/`;
  const found = make("tr");
  const name = make("th");
  name.scope = "row";
  name.append(link(model.name, place));
  const state = make("td", model.problem || model.reason || "ready", model.problem || model.reason ? "problem" : undefined);
  const more = make("td");
  if (!model.vectors) more.append(link("label", `${place}label`), " · ");
  more.append(link("requests", `${place}docs`));
  found.append(name, state, make("td", model.method), make("td", model.model_samples), make("td", model.classes), make("td", model.queue), more);
  return found;
}

function show(models) {
  const ready = models.filter((model) => model.reason === null).length;
  at("count").textContent = models.length ? `${ready} of ${models.length} ready` : "This token is for none of the models here.";
  at("models").hidden = !models.length;
  const body = at("models").tBodies[0];
  models.map(row).forEach((now, number) => {  // a row that has not changed stays, with the focus on its links
    const before = body.rows[number];
    if (!before) body.append(now);
    else if (!before.isEqualNode(now)) before.replaceWith(now);
  });
  while (body.rows.length > models.length) body.lastElementChild.remove();
}

async function refresh() {
  show((await request("models")).models);
  at("problem").hidden = true;
}

poll(refresh, POLL);
