// The behaviour of the live page: it draws what the events hold, and keeps what the reader has chosen.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const chosen = { x: "", y: "", targets: {} };
  let data = null;

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
    return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  }

  function choices(place, options) {
    if (!options.some((one) => one.name === chosen[place])) chosen[place] = options.length ? options[0].name : "";
    const buttons = options.map((one) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = one.name.replace(/_/g, " ");
      button.title = one.words;
      button.setAttribute("aria-pressed", String(one.name === chosen[place]));
      button.addEventListener("click", () => { chosen[place] = one.name; draw(); });
      return button;
    });
    const legend = $(place).querySelector("legend");
    $(place).replaceChildren(legend, ...buttons);
  }

  function amount(cost, value) {
    if (value === null) return "";
    if (cost.unit === "s") return duration(value);
    if (cost.unit !== "bytes") return `${value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 })} ${value === 1 ? cost.title.replace(/s$/, "") : cost.title}`;
    const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
    return `${Number((value / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
  }

  // The newest value of what is drawn, as the mean of the seeds.
  function newest(label) {
    const quantity = data.quantities.find((one) => one.name === chosen.y), entry = data.entries.find((one) => one.label === label);
    const value = quantity && entry ? entry.y[quantity.name].mean.findLast((y) => y !== null) : undefined;
    if (value === undefined) return "";
    return quantity.share ? `${(100 * value).toFixed(1)}%` : quantity.log ? value.toExponential(2) : Number(value.toPrecision(4)).toString();
  }

  // The costs until a method reached the chosen target, of those that a reader plans with.
  function untilTarget(label) {
    const quantity = data.quantities.find((one) => one.name === chosen.y), entry = data.entries.find((one) => one.label === label);
    if (!quantity || !quantity.targets.length || !entry) return "";
    const met = entry.reached[quantity.name][chosenTarget(quantity)];
    if (!met.costs) return `not yet; best ${met.best}`;
    return data.costs.map((cost, i) => (["communications", "bytes", "seconds"].includes(cost.name) ? amount(cost, met.costs[i][0]) : ""))
      .filter((text) => text).join(", ");
  }

  function chosenTarget(quantity) {
    const kept = quantity.targets.indexOf(chosen.targets[quantity.name]);
    return kept < 0 ? quantity.chosen : kept;
  }

  function target() {
    const quantity = data.quantities.find((one) => one.name === chosen.y), offered = Boolean(quantity && quantity.targets.length);
    $("target-label").hidden = !offered;
    $("finding").textContent = quantity && chosen.x ? `${data.finished ? "" : "So far: "}${quantity.findings[chosen.x][offered ? chosenTarget(quantity) : 0]}` : "";
    $("plain").textContent = quantity ? quantity.plain : "";
    if (!offered || document.activeElement === $("target")) return;
    $("target").replaceChildren(...quantity.goals.map((text, i) => new Option(text, i, false, i === chosenTarget(quantity))));
  }

  function federation() {
    $("federation").hidden = !data.clients && !data.processes;
    const down = (data.processes || []).filter((one) => !one.runs), all = (data.processes || []).length;
    $("processes").textContent = !all ? "" : `${all - down.length} of ${all} processes run`
      + (down.length ? `; not ${down.map((one) => one.name).join(", ")}. Start them again: fedpd up.` : ".");
    $("events").textContent = Object.entries(data.events || {}).map(([name, number]) => `${name}: ${number.toLocaleString("en")}`).join(", ");
    $("clients").replaceChildren(...(data.clients || []).map((one) => tableRow([one.name,
      one.present ? "replied" : "not in the last communication", one.reply ? `communication ${one.reply.toLocaleString("en")}` : "none", one.measured])));
  }

  function tableRow(texts) {
    const row = document.createElement("tr");
    row.append(...texts.map((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (!i) cell.scope = "row";
      cell.textContent = text;
      return cell;
    }));
    return row;
  }

  function rows() {
    $("newest").textContent = chosen.y.replace(/_/g, " ") || "newest";
    $("rows").replaceChildren(...data.progress.map((one) => {
      const rounds = one.state === "running" ? `${one.done.toLocaleString("en")} of ${one.rounds.toLocaleString("en")}`
        : one.state === "finished" ? one.done.toLocaleString("en") : one.state;
      const some = one.divergence && one.state !== "diverged" ? `; ${one.divergence}` : "";
      return tableRow([one.label, rounds + some, newest(one.label), one.communications || "", one.bytes || "", duration(one.seconds), duration(one.left), untilTarget(one.label)]);
    }));
  }

  function draw() {
    choices("y", data.quantities);
    choices("x", data.costs);
    target();
    rows();
    const quantity = data.quantities.find((one) => one.name === chosen.y), cost = data.costs.find((one) => one.name === chosen.x);
    if (!quantity || !cost) return;
    const log = quantity.log && quantity.positive;
    const traces = data.entries.map((entry) => ({
      x: entry.x[cost.name], y: entry.y[quantity.name].mean, name: plain(entry.label) + (entry.divergence ? ` (${entry.divergence})` : ""), connectgaps: true, // rows without a value were not measured
      mode: entry.y[quantity.name].mean.filter((y) => y !== null).length === 1 ? "markers" : "lines",
      line: { color: entry.style[dark.matches ? "dark" : "light"], dash: entry.style.dash, width: 2 },
    }));
    const axis = (more) => ({ gridcolor: style("--line"), linecolor: style("--soft"), zeroline: false, automargin: true, exponentformat: "power", ...more });
    Plotly.react("figure", traces, {
      autosize: true, margin: { l: 50, r: 12, t: 34, b: 48 }, showlegend: traces.length <= 12, legend: { orientation: "h", y: -0.2 }, uirevision: `${chosen.x} ${chosen.y}`,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, sans-serif", size: 12, color: style("--ink") },
      xaxis: axis({ title: { text: cost.words }, rangemode: "tozero" }),
      yaxis: axis({ type: log ? "log" : "linear", tickformat: quantity.share ? "~%" : "", ...(quantity.range && !log ? { range: quantity.range } : {}) }),
      annotations: [{ text: `↑ ${quantity.words}`, xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 8, xshift: -30, showarrow: false }],
    }, { responsive: true, displayModeBar: false });
  }

  function show(fresh) {
    data = fresh;
    document.title = `${data.name}: fedpd`;
    $("name").textContent = data.name;
    federation();
    if (data.problem) { $("status").textContent = data.problem; return; }
    const running = data.progress.find((one) => one.state === "running");
    const ended = data.progress.filter((one) => one.state === "finished" || one.state === "diverged").length;
    $("status").textContent = data.finished ? "Finished." : running
      ? `${running.label}: round ${running.done.toLocaleString("en")} of ${running.rounds.toLocaleString("en")}; ${ended} of ${data.progress.length} methods finished.`
      : "Waiting for the first checkpoint.";
    draw();
  }

  $("target").addEventListener("change", () => {
    const quantity = data.quantities.find((one) => one.name === chosen.y);
    chosen.targets[quantity.name] = quantity.targets[Number($("target").value)];
    $("target").blur();
    draw();
  });
  const events = new EventSource("events");
  events.onmessage = (event) => { $("link").textContent = ""; show(JSON.parse(event.data)); };
  events.onerror = () => { $("link").textContent = "The connection was lost; the page tries again."; };
  dark.addEventListener("change", () => data && draw());
})();
