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

  // Figures: those of one dataset and memory size, or all.
  const chips = document.querySelector(".chips");
  if (chips) {
    const figures = document.querySelectorAll(".figures figure");
    const choose = (chip) => {
      for (const other of chips.children) other.setAttribute("aria-pressed", String(other === chip));
      const { dataset, memory, stream } = chip.dataset;
      for (const figure of figures) {
        const about = figure.dataset;
        figure.hidden = dataset !== undefined && about.dataset !== undefined
          && (about.dataset !== dataset || about.stream !== stream || !["0", memory].includes(about.memory));
      }
    };
    chips.hidden = false;
    chips.addEventListener("click", (event) => { if (event.target !== chips) choose(event.target); });
    const follow = () => {
      const wanted = location.hash.startsWith("#figure-") && document.getElementById(location.hash.slice(1));
      if (wanted && wanted.hidden) { choose(chips.lastElementChild); wanted.scrollIntoView(); }
    };
    choose(chips.querySelector("[aria-pressed=true]"));
    addEventListener("hashchange", follow);
    follow();
  }

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
    if (button) copyText(button);
  });
  document.getElementById("close").addEventListener("click", () => detail.close());
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
  if (location.hash.startsWith("#cell-")) open(location.hash.slice(1));

  const copyText = async (button) => {
    const code = button.parentElement.querySelector("code");
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  };
  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
})();
