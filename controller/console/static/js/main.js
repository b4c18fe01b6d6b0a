// What every page does: local times, running ages and countdowns, the theme switch, live updates.
import { formatTime, nowMs, span, t } from "./words.js";
import { connect } from "./live.js";

/** Put times below `root` into the viewer's zone; the title keeps UTC. Idempotent. */
export function localise(root = document) {
  for (const el of root.querySelectorAll("time[data-style]")) {
    if (el.dataset.done) continue;
    el.dataset.done = "1";
    const style = el.dataset.style;
    const ms = Date.parse(el.dateTime);
    if (style === "countdown" || style === "age") {
      el.title = `${formatTime(ms, "full")} · ${el.title}`;
      tick(el);
    } else {
      el.textContent = formatTime(ms, style, el.dataset.zone);
    }
  }
}

function tick(el) {
  const ms = Date.parse(el.dateTime) - nowMs();
  const text = Math.abs(ms) < 1000 ? t("js.now") : t(ms > 0 ? "js.in" : "js.ago", { span: span(ms) });
  if (el.textContent !== text) el.textContent = text;
}

setInterval(() => {
  for (const el of document.querySelectorAll('time[data-style="countdown"], time[data-style="age"]')) tick(el);
}, 1000);

for (const link of document.querySelectorAll("[data-theme-choice]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const name = link.dataset.themeChoice;
    document.cookie = `theme=${name}; path=/; max-age=31536000; samesite=strict`;
    document.documentElement.dataset.theme = name;
    for (const other of document.querySelectorAll("[data-theme-choice]")) {
      if (other === link) other.setAttribute("aria-current", "true");
      else other.removeAttribute("aria-current");
    }
    document.dispatchEvent(new CustomEvent("forecrest:theme"));
  });
}

localise();
document.addEventListener("forecrest:updated", (event) => localise(event.detail.root));
connect();
document.documentElement.dataset.ready = "";
