(() => {
  "use strict";
  const root = document.documentElement;
  document.body.classList.add("scripted");

  // Light and dark: the reader's system decides until the switch does.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const keep = (value) => { try { localStorage.setItem("ocil-theme", value); } catch { /* nothing to keep it in */ } };
  const kept = () => { try { return localStorage.getItem("ocil-theme"); } catch { return null; } };
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  if (["light", "dark"].includes(kept())) root.dataset.theme = kept();
  theme.hidden = false;
  theme.setAttribute("aria-label", "Switch between light and dark");
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; keep(root.dataset.theme); label(); });
  system.addEventListener("change", label);
  label();

  // Tables: a heading sorts, first the way that puts the best on top; a row without a number stays last.
  const collator = new Intl.Collator("en", { numeric: true });
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  const sort = (table, column, heading) => {
    const number = heading.dataset.kind === "number";
    const first = heading.dataset.first || (number ? "descending" : "ascending");
    const now = heading.getAttribute("aria-sort");
    const next = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
    for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    for (const body of table.tBodies) {
      if (body.classList.contains("fixed")) continue;
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (number ? Number(a) - Number(b) : collator.compare(a, b));
      });
      body.append(...rows.map(([, row]) => row));
    }
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, column, heading));
    });
  }

  // The filter: what a table, row, column or figure says that it is about must match; what says nothing always does.
  const explore = document.getElementById("explore");
  const filter = document.getElementById("filter");
  const wanted = { dataset: "", memory: "", words: [] };
  const matches = ({ dataset, memory, method }) =>
    (!wanted.dataset || dataset === undefined || dataset === wanted.dataset)
    && (!wanted.memory || memory === undefined || ["0", wanted.memory].includes(memory))
    && (!wanted.words.length || method === undefined || wanted.words.some((word) => method.toLowerCase().startsWith(word)));
  const filterTable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const shown = heads.map((head) => matches(head.dataset));
    heads.forEach((head, column) => { head.hidden = !shown[column]; });
    const empty = (row) => row.cells.length === heads.length && [...row.cells].every((cell, column) => !column || !shown[column] || cell.textContent === "–");
    let rows = 0;
    for (const body of table.tBodies) {
      for (const row of body.rows) {
        row.hidden = !matches(row.dataset) || (shown.includes(false) && empty(row));
        rows += row.hidden ? 0 : 1;
        if (row.cells.length < heads.length) row.cells[1].colSpan = Math.max(1, shown.filter(Boolean).length - 1);
        else [...row.cells].forEach((cell, column) => { cell.hidden = !shown[column]; });
      }
    }
    return shown.filter(Boolean).length > 1 ? rows : 0;
  };
  const filterTables = () => {
    for (const piece of document.querySelectorAll(".piece")) {
      const rows = [...piece.querySelectorAll("table")].map(filterTable);
      piece.hidden = !matches(piece.dataset) || !rows.some(Boolean);
      for (const folded of piece.querySelectorAll("details.empty")) {
        folded.hidden = ![...folded.querySelectorAll("tbody tr")].some((row) => !row.hidden);
      }
    }
    for (const section of document.querySelectorAll("section:has(> .piece)")) {
      section.classList.toggle("void", !section.querySelector(":scope > .piece:not([hidden])"));
    }
    const all = document.querySelectorAll("#cells table.sortable tbody tr");
    const left = filterTable(document.querySelector("#cells table.sortable"));
    explore.querySelector(".shown").textContent = left === all.length ? (left === 1 ? "The only cell is shown." : `All ${left} cells are shown.`) : `${left} of ${all.length} cells are shown.`;
  };

  // Figures: those of one dataset and memory size, or all; of these, what the filter leaves.
  const chips = document.querySelector(".chips");
  const figures = document.querySelectorAll(".figures figure");
  const showFigures = () => {
    const { dataset, memory, stream } = chips ? chips.querySelector("[aria-pressed=true]").dataset : {};
    for (const figure of figures) {
      const about = figure.dataset;
      const elsewhere = dataset !== undefined && about.dataset !== undefined
        && (about.dataset !== dataset || about.stream !== stream || !["0", memory].includes(about.memory));
      figure.hidden = elsewhere || !matches(about);
    }
  };
  const choose = (chip) => {
    for (const other of chips.children) other.setAttribute("aria-pressed", String(other === chip));
    showFigures();
  };
  const filterFigures = () => {
    if (chips) {
      for (const chip of chips.children) chip.hidden = !matches(chip.dataset);
      if (chips.querySelector("[aria-pressed=true]").hidden) choose(chips.querySelector(":not([hidden])"));
    }
    showFigures();
  };
  if (chips) {
    chips.hidden = false;
    chips.addEventListener("click", (event) => { if (event.target !== chips) choose(event.target); });
  }
  showFigures();

  // Two rows, paired: the difference is over the seeds that both have, with Student's 95 % interval of its mean. Of two
  // seeds the lowest and highest value are shown instead, as everywhere.
  const pair = document.getElementById("pair");
  const numbers = explore ? JSON.parse(explore.dataset.numbers) : null;
  const estimate = (values) => {
    const n = values.length;
    if (!n) return null;
    const mean = values.reduce((sum, value) => sum + value, 0) / n;
    const square = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    return { mean, n, values, interval: n > 2 ? numbers.t[n - 2] * Math.sqrt(square / (n - 1) / n) : null };
  };
  const fixed = (share) => {
    const text = (numbers.factor * share * (1 + 1e-11)).toFixed(1); // as in the tables, a half goes away from zero
    return Number(text) === 0 ? "0.0" : text.replace("-", "\u2212");
  };
  const plus = (share) => (share >= 0 ? "+" : "");
  const spread = (found, sign) => {
    if (found.n === 1) return " (one seed)";
    if (found.n > 2) return ` ± ${fixed(found.interval)}`;
    return ` (${[...found.values].sort((a, b) => a - b).map((value) => sign(value) + fixed(value)).join(" to ")})`;
  };
  const written = (found, sign = () => "") => sign(found.mean) + fixed(found.mean) + spread(found, sign);
  const settled = (found) => found.interval !== null && Math.abs(found.mean) > found.interval;
  const add = (parent, name, text, more = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(more)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const times = (found) => (found.length ? `${found.length} (in ${found.filter(settled).length} of these the interval leaves out zero)` : "none");
  const compare = () => {
    const row = (name) => numbers.rows.find((each) => each.name === name);
    const [first, second] = [row(pair.elements.first.value), row(pair.elements.second.value)];
    const table = explore.querySelector("table.paired");
    table.replaceChildren();
    const head = add(add(table, "thead", ""), "tr", "");
    for (const title of ["column", "difference", `${first.name}, ${numbers.title}`, `${second.name}, ${numbers.title}`, "shared seeds"]) add(head, "th", title, { scope: "col" });
    const body = add(table, "tbody", "");
    const found = [];
    let both = 0;
    numbers.columns.forEach((column, place) => {
      const [mine, other] = [first.values[place], second.values[place]];
      if (!mine || !other || !matches({ dataset: column.dataset, memory: column.memory })) return;
      const shared = Object.keys(mine).filter((seed) => seed in other);
      const difference = estimate(shared.map((seed) => mine[seed] - other[seed]));
      both += 1;
      if (difference) found.push(difference);
      const line = add(body, "tr", "");
      add(line, "th", column.title, { scope: "row" });
      const text = difference ? written(difference, plus) : "no shared seed";
      add(line, "td", text, difference && settled(difference) ? { class: "settled" } : {});
      add(line, "td", first.texts[place]);
      add(line, "td", second.texts[place]);
      add(line, "td", String(shared.length));
    });
    const better = (sign) => found.filter(({ mean }) => sign * mean * (numbers.higher ? 1 : -1) > 0);
    explore.querySelector(".verdict").textContent = first === second ? "Choose two different methods."
      : !both ? `${first.name} and ${second.name} have no column in common${wanted.dataset || wanted.memory ? " under this filter" : ""}.`
        : `Of ${both} ${both === 1 ? "column" : "columns"} that both have, ${first.name} is ahead in ${times(better(1))} and behind in ${times(better(-1))}.`;
    table.parentElement.hidden = first === second || !both;
  };

  // The address holds what was chosen: "#?dataset=cifar100&memory=1000&method=afs&at=figures".
  const NAMES = ["dataset", "memory", "method", "first", "second"];
  const control = (name) => (filter && filter.elements[name]) || (pair && pair.elements[name]);
  const usual = Object.fromEntries(NAMES.map((name) => [name, control(name) ? control(name).value : ""]));
  const apply = () => {
    wanted.dataset = filter.elements.dataset.value;
    wanted.memory = filter.elements.memory.value;
    wanted.words = filter.elements.method.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
    filterTables();
    filterFigures();
    if (pair) compare();
  };
  const remember = (at = "") => {
    const kept = new URLSearchParams();
    for (const name of NAMES) if (control(name) && control(name).value !== usual[name]) kept.set(name, control(name).value);
    if (!at && !kept.size && !location.hash.startsWith("#?")) return;
    if (at && !kept.size) return;
    if (at) kept.set("at", at);
    try { history.replaceState(null, "", kept.size ? `#?${kept}` : "#"); } catch { /* some places allow no change */ }
  };
  const recall = () => {
    if (!location.hash.startsWith("#?")) { remember(location.hash.slice(1)); return; }
    const kept = new URLSearchParams(location.hash.slice(2));
    for (const name of NAMES) {
      if (!control(name)) continue;
      const value = kept.get(name) ?? usual[name];
      const known = control(name).options === undefined || [...control(name).options].some((option) => option.value === value);
      control(name).value = known ? value : usual[name];
    }
    apply();
    const at = document.getElementById(kept.get("at") ?? "");
    if (at) at.scrollIntoView();
  };
  const follow = () => {
    const target = location.hash.startsWith("#figure-") && document.getElementById(location.hash.slice(1));
    if (!target || !target.hidden) return;
    if (filter && !matches(target.dataset)) { filter.reset(); apply(); }
    if (chips) choose(chips.lastElementChild);
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow); // before the address is rewritten
  if (explore) {
    explore.hidden = false;
    const changed = () => { apply(); remember(); };
    for (const form of [filter, pair].filter(Boolean)) {
      form.addEventListener("input", changed);
      form.addEventListener("submit", (event) => event.preventDefault());
    }
    filter.addEventListener("reset", () => setTimeout(changed));
    if (pair) {
      pair.querySelector(".swap").addEventListener("click", () => {
        const { first, second } = pair.elements;
        [first.value, second.value] = [second.value, first.value];
        changed();
      });
    }
    apply();
    addEventListener("hashchange", recall);
    recall();
  }
  follow();

  // A cell's runs, settings and command.
  const detail = document.getElementById("detail");
  const content = detail.querySelector(".content");
  const open = (id) => {
    const body = document.getElementById(id);
    if (!body || !body.classList.contains("body")) return false;
    const copy = body.cloneNode(true);
    copy.removeAttribute("id");
    content.replaceChildren(copy);
    detail.setAttribute("aria-label", copy.querySelector("h3").textContent);
    if (!detail.open) detail.showModal();
    detail.scrollTop = 0;
    return true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-cell]");
    if (link && open(link.dataset.cell)) event.preventDefault();
    const button = event.target.closest("button.copy");
    if (button) copyText(button, button.parentElement.querySelector("code").textContent);
    const latex = event.target.closest("button.latex");
    if (latex) copyText(latex, latex.nextElementSibling.content.textContent);
  });
  document.getElementById("close").addEventListener("click", () => detail.close());
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
  if (location.hash.startsWith("#cell-")) open(location.hash.slice(1));

  const copyText = async (button, text) => {
    const label = button.dataset.label ?? button.textContent;
    button.dataset.label = label;
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = add(button.parentElement, "textarea", text);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = done ? "Copied" : "The browser does not allow it";
    setTimeout(() => { button.textContent = label; }, 1600);
  };
  for (const hidden of document.querySelectorAll("button.copy, .tool")) hidden.hidden = false;

  // What is folded in tables is printed too.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.empty:not([open])")];
    for (const folded of opened) folded.open = true;
  });
  addEventListener("afterprint", () => { for (const folded of opened) folded.open = false; });
})();
