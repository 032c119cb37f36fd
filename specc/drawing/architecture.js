// Architecture page: select a block in the tree or in a diagram, switch between graphs, and follow links to spec lines.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
let graph = 0;

function choose(id) {
  const panel = id && byId(id);
  if (!panel) return;
  const within = panel.closest(".graph");
  all(".panel", within).forEach((other) => { other.hidden = other !== panel; });
  all(".row", within).forEach((row) => row.setAttribute("aria-current", String(row.dataset.panel === id)));
  panel.parentElement.scrollTop = 0;
}

function show(number) {
  graph = number;
  all(".graph").forEach((section, n) => { section.hidden = n !== number; });
  all("[data-graph]").forEach((tab, n) => tab.setAttribute("aria-selected", String(n === number)));
}

all("[data-graph]").forEach((tab, n) => tab.addEventListener("click", () => show(n)));
all(".row").forEach((row) => row.addEventListener("click", (event) => {
  event.preventDefault(); // only the arrow of the row opens and closes it
  choose(row.dataset.panel);
}));
all("rect[data-part]").forEach((box) => box.addEventListener("click", () => {
  const number = Number(box.closest(".graph").id.slice(1));
  const id = data.graphs[number][box.dataset.part];
  choose(id);
  const row = all(".row").find((one) => one.dataset.panel === id);
  for (let at = row; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
}));
byId("fold").addEventListener("click", () => {
  const tree = byId(`g${graph}`), closed = all("details:not([open])", tree);
  all("details", tree).forEach((part) => { part.open = closed.length > 0; });
  byId("fold").textContent = closed.length > 0 ? "close all" : "open all";
});

// A link to a spec line opens the source that contains the line.
function follow() {
  const line = byId(decodeURIComponent(location.hash.slice(1)));
  if (!line || !line.closest(".source")) return;
  all("li.target").forEach((other) => other.classList.remove("target"));
  line.classList.add("target");
  line.closest(".source").open = true;
  line.scrollIntoView({ block: "center" });
}
window.addEventListener("hashchange", follow);
all(".lines a").forEach((link) => link.addEventListener("click", () => setTimeout(follow)));
all(".graph").forEach((section) => { const first = section.querySelector(".panel"); if (first) choose(first.id); });
follow();
