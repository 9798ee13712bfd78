// The page of the cluster: asks for status.json every few seconds and shows it. Whatever it shows
// goes into the page as text (textContent), so names of clients and servers are names and no more.
"use strict";

const REFRESH_MS = 5000;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 120;
const CHARTS = [
  { title: "Bytes a second", format: (n) => `${size(n)}/s`,
    lines: [["read_bytes", "read", "read"], ["written_bytes", "written", "write"]] },
  { title: "Reads and writes a second", format: count,
    lines: [["reads", "reads", "read"], ["writes", "writes", "write"]] },
  { title: "Metadata requests a second", format: count, lines: [["requests", "requests", "other"]] },
];
let heardMs = 0;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (bytes >= 1024 && power < units.length - 1) { bytes /= 1024; power += 1; }
  return `${power ? bytes.toFixed(1) : Math.round(bytes)} ${units[power]}`;
}

function count(number) { return Math.round(number).toLocaleString("en"); }

function duration(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

function milliseconds(seconds) { return `${(seconds * 1000).toFixed(1)} ms`; }

// Names with what does not print (controls, what turns the direction of text) shown by number.
function visible(text) {
  return String(text).replace(/\p{C}/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function element(kind, text, style) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = visible(text);
  if (style) made.className = style;
  return made;
}

function say(id, text) { document.getElementById(id).textContent = visible(text); }

function table(id, columns, rows) {
  const head = element("tr");
  for (const [name, , style] of columns) {
    head.append(element("th", name, typeof style === "function" ? "left" : style));
  }
  const lines = rows.map((row) => {
    const line = element("tr");
    for (const [, value, style] of columns) {
      line.append(element("td", value(row), typeof style === "function" ? style(row) : style));
    }
    return line;
  });
  document.getElementById(id).replaceChildren(head, ...lines);
}

function chart({ title, format, lines }, history) {
  const most = Math.max(1, ...lines.flatMap(([name]) => history[name]));
  const figure = element("figure"), caption = element("figcaption", title);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  for (const [name, label, style] of lines) {
    const values = history[name], last = values.length ? values[values.length - 1] : 0;
    caption.append(element("span", `${label} ${format(last)}`, style));
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", style);
    path.setAttribute("d", steps(values, history.at_s, most));
    svg.append(path);
  }
  caption.append(element("span", `at most ${format(most)}`, "soft"));
  figure.append(caption, svg);
  return figure;
}

// What the charts show: an hour, or less where the metaserver has not served for so long.
function span(times) {
  const known = times.length ? times[times.length - 1] - times[0] : 0;
  return Math.min(3600, Math.max(60, known));
}

// The right end is now.
function steps(values, times, most) {
  if (!values.length) return "";
  const end = times[times.length - 1], width = span(times);
  return values.map((value, index) => {
    const x = WIDTH - (end - times[index]) / width * WIDTH;
    return `${index ? "L" : "M"}${x.toFixed(1)} ${(HEIGHT - value / most * (HEIGHT - 4)).toFixed(1)}`;
  }).join("");
}

function problems(found) {
  document.getElementById("problems").replaceChildren(...found.map((one) => {
    const box = element("div", undefined, `problem ${word(one.severity)}`);
    box.append(element("strong", one.what), element("p", `${one.why}.`), element("p", `→ ${one.do}`));
    return box;
  }));
}

// Of what becomes the name of a class: one of the few words that there are.
function word(text) { return /^[a-z]{1,20}$/.test(text) ? text : ""; }

function rates(row) {
  return `${size(row.rates.read_bytes_per_s)}/s`;
}

function show(seen) {
  say("cluster", seen.cluster.slice(0, 8));
  const health = document.getElementById("health");
  health.textContent = seen.health;
  health.className = `badge ${word(seen.health)}`;
  const meta = seen.metaserver;
  say("metaserver", `metaserver ${meta.version}, ${meta.state} for ${duration(meta.uptime_s)}`);
  problems(seen.problems);
  space(seen);
  jobs(seen.jobs.filter((one) => one.at_work));
  const seconds = span(seen.history.at_s);
  say("span", seconds < 3600 ? `so far ${duration(seconds)}` : "");
  document.getElementById("charts").replaceChildren(
    ...CHARTS.map((one) => chart(one, seen.history)));
  group(seen);
  tables(seen);
}

function space(seen) {
  const { bytes_total: total, bytes_available: available, inodes_used: inodes } = seen.space;
  const share = total ? 1 - available / total : 0;
  document.getElementById("used").style.width = `${(share * 100).toFixed(1)}%`;
  say("space", `${size(total - available)} of ${size(total)} are used ` +
      `(${(share * 100).toFixed(0)} %), ${count(inodes)} inodes`);
}

// A sentence for each job that has something to do.
function jobs(found) {
  document.getElementById("jobs").hidden = !found.length;
  document.getElementById("job-list").replaceChildren(...found.map((one) => {
    const line = element("li", `${one.sentence}.`, word(one.state));
    line.prepend(element("strong", `Job ${one.job} `));
    return line;
  }));
}

// Of several metaservers; one that is alone has no journal.
function group(seen) {
  const journal = seen.journal;
  document.getElementById("group").hidden = !journal;
  if (!journal) return;
  table("metaservers", [
    ["metaserver", (r) => r.name], ["address", (r) => r.address, "left"],
    ["role", (r) => r.role, (r) => `left ${word(r.role)}`],
    ["term", (r) => r.term === null ? "-" : count(r.term)], ["applied", (r) => count(r.applied)],
    ["behind", (r) => r.role === "active" ? "-" : `${count(r.behind)} entries`],
    ["for", (r) => r.role === "active" ? "-" : duration(r.behind_s)],
    ["reported", (r) => r.role === "active" ? "-" : `${duration(r.seconds_since_report)} ago`],
  ], seen.metaservers);
  const appends = journal.append_p99_s
    ? `appends ${milliseconds(journal.append_p50_s)}, 1 % over ${milliseconds(journal.append_p99_s)}, `
    : "";
  say("journal", `${journal.engine}, term ${journal.term}, entry ${count(journal.index)}, ` +
      `${appends}heard of ${duration(journal.silence_s)} ago`);
  const known = (text) => (r) => r.reachable ? text(r) : "-";
  table("journal-servers", journal.servers.length ? [
    ["server", (r) => r.endpoint],
    ["state", engineState, (r) => `left ${r.reachable && !r.alarms.length ? "up" : "down"}`],
    ["role", known((r) => r.leader ? "leader" : "-"), "left"],
    ["used", known((r) => size(r.bytes_used))],
    ["of", known((r) => r.bytes_max ? size(r.bytes_max) : "no bound")],
  ] : [], journal.servers);
}

function engineState(server) {
  if (!server.reachable) return "not reachable";
  return server.alarms.length ? "alarm" : "up";
}

function tables(seen) {
  table("nodes", [
    ["server", (r) => r.name], ["address", (r) => r.address, "left"],
    ["state", (r) => r.state, (r) => `left ${word(r.state)}`],
    ["heard of", (r) => `${duration(r.seconds_since_heartbeat)} ago`],
    ["read", rates], ["written", (r) => `${size(r.rates.written_bytes_per_s)}/s`],
    ["read in all", (r) => size(r.read_bytes)], ["written in all", (r) => size(r.written_bytes)],
  ], seen.nodes);
  table("targets", [
    ["target", (r) => r.target], ["server", (r) => r.node_name, "left"],
    ["state", targetState, (r) => `left ${word(r.state)}`],
    ["used", (r) => `${(r.bytes_total ? 100 - r.bytes_free / r.bytes_total * 100 : 0).toFixed(0)} %`],
    ["free", (r) => size(r.bytes_free)], ["size", (r) => size(r.bytes_total)],
    ["objects", (r) => count(r.objects)], ["errors", (r) => count(r.errors)],
  ], seen.targets);
  const more = seen.client_count - seen.clients.length;
  say("client-count", `${count(seen.client_count)}${more ? `, the busiest ${seen.clients.length}` : ""}`);
  table("clients", [
    ["client", (r) => r.client], ["state", (r) => r.state, "left"], ["read", rates],
    ["written", (r) => `${size(r.rates.written_bytes_per_s)}/s`],
    ["metadata", (r) => `${count(r.rates.requests_per_s)}/s`], ["open", (r) => count(r.opens)],
    ["bytes by", (r) => [...new Set(r.paths.map((p) => p.transport.toUpperCase()))].join(", ")],
    ["heard of", (r) => `${duration(r.seconds_since_renewal)} ago`],
  ], seen.clients);
}

// Of a target that loses its files: how many of their bytes are elsewhere.
function targetState(target) {
  const share = target.share_done;
  return share === null ? target.state : `${target.state} ${Math.floor(share * 100)} %`;
}

async function refresh() {
  const lost = document.getElementById("lost");
  try {
    const reply = await fetch("status.json", { cache: "no-store" });
    if (!reply.ok) throw new Error(`${reply.status}`);
    show(await reply.json());
    heardMs = Date.now();
    lost.hidden = true;
  } catch (error) {
    const since = heardMs ? ` for ${duration((Date.now() - heardMs) / 1000)}` : "";
    lost.textContent = `The metaserver has not answered${since}: what is below is old.`;
    lost.hidden = false;
  }
  setTimeout(refresh, REFRESH_MS);
}

refresh();
