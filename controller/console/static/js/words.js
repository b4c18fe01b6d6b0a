// Strings, spans and instants for scripts. Words come with the page; what is missing is a mistake and shows as its key.
const strings = JSON.parse(document.getElementById("strings").textContent);

export function t(key, values = {}) {
  return (strings[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export const language = document.documentElement.lang;

// Difference between the console's clock and this machine's, so that ages and countdowns follow the former.
let skewMs = Date.parse(document.body.dataset.now) - Date.now();
export const setNow = (iso) => { skewMs = Date.parse(iso) - Date.now(); };
export const nowMs = () => Date.now() + skewMs;

/** A duration to its two largest units, as the server writes it. */
export function span(ms) {
  let left = Math.round(Math.abs(ms) / 1000);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (left >= size && parts.length < 2) {
      parts.push(`${Math.floor(left / size)} ${t(`js.${unit}`)}`);
      left %= size;
    } else if (parts.length) break;
  }
  return parts.join(" ") || `0 ${t("js.s")}`;
}

const STYLES = {
  datetime: { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
  date: { year: "numeric", month: "short", day: "numeric" },
  time: { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" },
  short: { hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
  day: { month: "short", day: "numeric" },
  dayhour: { day: "numeric", month: "short", hour: "2-digit", hourCycle: "h23" },
  full: { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" },
};
const formats = {};

/** An instant in the viewer's zone, or in `zone`. */
export function formatTime(ms, style = "datetime", zone = undefined) {
  const key = `${style} ${zone ?? ""}`;
  formats[key] ??= new Intl.DateTimeFormat(language, { ...(STYLES[style] ?? STYLES.datetime), timeZone: zone });
  return formats[key].format(ms);
}
