// The planner's form: a preview while typing, fields that belong together, the browser's zone; calendar files dropped.
import { fetchFragment, post, replaceContent } from "./live.js";

const QUIET_MS = 350; // after the last keystroke
const AGAIN_MS = 4000; // after the controller did not answer
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

// The calendar is drawn in the viewer's zone. The server learns it here; a page drawn before that is drawn again, once.
if (zone && !document.cookie.split("; ").includes(`tz=${zone}`)) {
  document.cookie = `tz=${zone}; path=/; max-age=31536000; samesite=strict`;
  const drawn = document.querySelector(".calendar, .agenda");
  if (drawn && document.cookie.split("; ").includes(`tz=${zone}`)) location.reload();
}

for (const input of document.querySelectorAll('[data-fill="zone"]')) {
  const known = [...(input.list?.options ?? [])].some((option) => option.value === zone);
  if (known && (input.value === "" || input.value === "UTC")) input.value = zone;
}

// Workloads by the hundred: narrow the choice, never what is chosen.
for (const search of document.querySelectorAll("[data-search]")) {
  search.addEventListener("input", () => {
    for (const pick of document.querySelectorAll(`#${search.dataset.search} .pick`)) {
      const fits = pick.textContent.toLowerCase().includes(search.value.trim().toLowerCase());
      pick.hidden = !fits && !pick.querySelector("input").checked;
    }
  });
}

/** Show what belongs to the present choice: `data-shown-for="name=value"`. */
function arrange(form) {
  const data = new FormData(form);
  for (const el of form.querySelectorAll("[data-shown-for]")) {
    const [name, value] = el.dataset.shownFor.split("=");
    el.hidden = data.get(name) !== value;
  }
}

/** Keep the length when the start moves. */
function keepLength(form) {
  const { start, end } = form.elements;
  if (!start || !end) return;
  let before = start.value;
  start.addEventListener("change", () => {
    const ms = (text) => Date.parse(`${text}Z`);
    const length = ms(end.value) - ms(before);
    if (start.value && length > 0) end.value = new Date(ms(start.value) + length).toISOString().slice(0, 16);
    before = start.value;
  });
}

function sayErrors(form, shown) {
  const said = new Map([...shown.querySelectorAll("[data-field]")].map((el) => [el.dataset.field, el.textContent]));
  for (const el of form.querySelectorAll("[data-error]")) {
    const text = said.get(el.dataset.error) ?? "";
    el.textContent = text;
    el.hidden = text === "";
    const input = form.elements[el.dataset.error];
    if (input instanceof HTMLElement) text ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
  }
}

/** Ask for the preview of what the form says. One question at a time: a newer one cancels it. */
function previewed(form) {
  const into = document.getElementById(form.dataset.previewInto);
  if (!into) return;
  const busy = document.getElementById("preview-busy");
  let timer = 0;
  let asked = null;
  const brief = document.getElementById("brief");
  const ask = async () => {
    asked?.abort();
    const mine = (asked = new AbortController());
    into.setAttribute("aria-busy", "true");
    busy.textContent = busy.dataset.busy;
    try {
      const headers = { "X-CSRF-Token": form.elements.csrf.value };
      const body = new FormData(form);
      const html = await fetchFragment(form.dataset.preview, { method: "POST", body, headers, signal: mine.signal });
      if (mine.signal.aborted) return;
      replaceContent(into, html);
      sayErrors(form, into);
      busy.textContent = "";
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status && error.status < 500) {
        replaceContent(into, error.html);
        busy.textContent = "";
      } else {
        // What stood there answers another question now.
        into.replaceChildren();
        busy.textContent = busy.dataset.lost;
        timer = setTimeout(ask, AGAIN_MS);
      }
    }
    // On a phone the preview lies below the button: its gist stands above it.
    brief.textContent = into.querySelector("[data-brief]")?.dataset.brief ?? "";
    into.removeAttribute("aria-busy");
  };
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, QUIET_MS);
  };
  form.addEventListener("input", later);
  form.addEventListener("change", later);
  ask();
}

for (const form of document.querySelectorAll("[data-preview]")) {
  form.addEventListener("change", () => arrange(form));
  keepLength(form);
  arrange(form);
  previewed(form);
}

/** A calendar file is looked at before it is imported. */
function importing(form) {
  const into = document.getElementById(form.dataset.importInto);
  const drop = document.getElementById("drop");
  const name = document.getElementById("drop-name");
  const file = form.elements.calendar;
  const look = async () => {
    name.textContent = file.files[0]?.name ?? "";
    into.setAttribute("aria-busy", "true");
    try {
      replaceContent(into, await post(form.dataset.import, new FormData(form)));
    } catch (error) {
      if (error.html) replaceContent(into, error.html);
    }
    into.removeAttribute("aria-busy");
  };
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (!event.dataTransfer.files.length) return;
    file.files = event.dataTransfer.files;
    look();
  });
  file.addEventListener("change", look);
  document.getElementById("import-preview").addEventListener("click", look);
  // What was shown no longer fits what would be sent.
  form.addEventListener("input", (event) => { if (event.target !== file) into.replaceChildren(); });
}

for (const form of document.querySelectorAll("[data-import]")) importing(form);
