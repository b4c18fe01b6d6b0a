// The fleet's filter, order and pages without leaving the page. Every state has an address of its own.
import { refresh } from "./live.js";

const box = document.getElementById("fleet");
const search = document.getElementById("search");
const input = document.getElementById("q");

function go(address, { push = true } = {}) {
  const url = new URL(address, location.href);
  box.dataset.src = `/fleet/rows${url.search}`;
  if (push) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
  return refresh(box);
}

function typed() {
  const url = new URL(location.href);
  if (input.value) url.searchParams.set("q", input.value);
  else url.searchParams.delete("q");
  url.searchParams.delete("page");
  go(url, { push: false });
}

let timer = 0;
input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(typed, 80); });
search.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); typed(); });
box.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-nav]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (link.getAttribute("href") === "/") input.value = "";
  const paged = link.closest(".pager");
  go(link.href).then(() => { if (paged) box.scrollIntoView({ block: "start" }); });
});
window.addEventListener("popstate", () => {
  input.value = new URL(location.href).searchParams.get("q") ?? "";
  go(location.href, { push: false });
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  input.focus();
});
