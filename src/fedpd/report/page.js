// The page's behaviour. What it shows was computed beforehand: here it is only chosen, drawn and sorted.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { quantities, costs, entries, problems } = data;
  const $ = (id) => document.getElementById(id);

  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const state = { x: 0, y: 0, logX: false, logY: false, hidden: new Set([...entries.keys()].filter((i) => !data.shown.includes(i))), target: quantities.map((q) => q.chosen) };

  const colour = (i) => entries[i].style[dark.matches && !printing ? "dark" : "light"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Figures read a little HTML in their texts: a label is shown as it is written.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function swatch(i) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "0 0 30 10");
    svg.setAttribute("aria-hidden", "true");
    const drawn = { x1: 0, x2: 30, y1: 5, y2: 5, stroke: colour(i), "stroke-width": 3, "stroke-dasharray": entries[i].style.stroke };
    for (const [name, value] of Object.entries(drawn)) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  }

  // A label takes at most a line; the rest of it is shown to a pointer that rests on it.
  const clipped = (label) => element("span", { class: "clipped", title: label }, label);

  // 192 M, 9.63 MB, 118, 4.52 s
  function amount({ unit, log }, value) {
    if (value === null) return "–";
    if (unit === "s" || unit === "h") return `${Number(value.toPrecision(3))} ${unit}`;
    if (!log) return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
    const power = value < 1 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), 5);
    return `${Number((value / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T", "P"][power]}${unit === "bytes" ? "B" : ""}`.trim();
  }

  function traces() {
    const cost = costs[state.x], quantity = quantities[state.y], drawn = [];
    entries.forEach((entry, i) => {
      if (state.hidden.has(i)) return;
      const { mean, low, high } = entry.y[quantity.name], at = entry.x[cost.name];
      if (low) {
        const whole = at.map((_, k) => k).filter((k) => at[k] !== null && low[k] !== null && high[k] !== null && (!state.logY || low[k] > 0) && (!state.logX || at[k] > 0));
        const back = [...whole].reverse();
        drawn.push({
          x: [...whole, ...back].map((k) => at[k]), y: [...whole.map((k) => high[k]), ...back.map((k) => low[k])],
          fill: "toself", fillcolor: `${colour(i)}2e`, line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false,
        });
      }
      const known = mean.filter((y, k) => y !== null && at[k] !== null).length; // a row without a value was not measured
      const end = mean.findLastIndex((y, k) => y !== null && at[k] !== null && (!state.logY || y > 0)); // where it diverged
      const digits = quantity.share ? ".2%" : quantity.log ? ".2e" : ".5~g";
      const format = cost.unit === "s" || cost.unit === "h" ? ".3~g" : cost.log ? ".3~s" : ",.6~g";
      const spread = low ? `<br>seeds: %{customdata[1]:${digits}} to %{customdata[2]:${digits}}` : "";
      drawn.push({
        x: at, y: mean, connectgaps: true, mode: known === 1 ? "markers" : entry.diverged ? "lines+markers" : "lines", name: plain(entry.label),
        line: { color: colour(i), dash: entries[i].style.dash, width: 2 },
        marker: entry.diverged ? { color: colour(i), symbol: "x", opacity: 1, size: mean.map((_, k) => (k === end ? 11 : 0)) } : { color: colour(i) },
        customdata: entry.round.map((r, k) => [r, low ? low[k] : null, high ? high[k] : null]), showlegend: false,
        hovertemplate: `<b>${plain(entry.label)}</b>${entry.divergence ? `<br>${entry.divergence}` : ""}<br>%{y:${digits}}<br>${cost.title} %{x:${format}}<br>round %{customdata[0]:,}${spread}<extra></extra>`,
      });
    });
    return drawn;
  }

  const axis = (more) => ({
    gridcolor: style("--line"), linecolor: style("--soft"), zeroline: false, ticks: "outside", tickcolor: style("--line"),
    automargin: true, exponentformat: "power", ...more,
  });
  const base = (place, more) => ({
    ...(printing ? { width: $(place).clientWidth, height: $(place).clientHeight } : { autosize: true }),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: "system-ui, sans-serif", size: 12, color: style("--ink") },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--soft"), activecolor: style("--accent") },
    hoverlabel: { bgcolor: style("--panel"), bordercolor: style("--line"), font: { color: style("--ink") }, align: "left" },
    ...more,
  });
  // On a phone the buttons of a figure would cover its axis title, and fingers zoom without them.
  const narrow = () => innerWidth < 640;
  const config = () => ({
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg", filename: "fedpd" },
  });

  // Ticks of a logarithmic axis: powers of ten, and twos and fives where there is room for them.
  function decades(values, room) {
    const shown = values.filter((one) => one > 0);
    const span = shown.length ? Math.log10(shown.reduce((a, b) => Math.max(a, b)) / shown.reduce((a, b) => Math.min(a, b))) : 0;
    return 3 * span > room ? { dtick: Math.max(1, Math.ceil(span / room)) } : span > 0.7 ? { dtick: "D2" } : {};
  }

  const visible = () => entries.map((entry, i) => ({ entry, i })).filter(({ i }) => !state.hidden.has(i));
  const ROOM = 12; // names beside the figure; more would not fit

  // Names at the ends of the curves, moved apart where they would overlap.
  function nameEnds() {
    const figure = $("figure"), full = figure._fullLayout, quantity = quantities[state.y];
    if (!full || narrow() || visible().length < 2 || visible().length > ROOM) return;
    const [low, high] = full.yaxis.range, gap = 16 / full._size.h;
    const ends = visible().map(({ entry, i }) => {
      const last = entry.y[quantity.name].mean.findLast((y) => y !== null && (!state.logY || y > 0));
      return { entry, i, at: last === undefined ? NaN : ((state.logY ? Math.log10(last) : last) - low) / (high - low) };
    }).filter(({ at }) => at >= -0.01 && at <= 1.01).sort((a, b) => a.at - b.at);
    let groups = [];
    ends.forEach(({ at }, k) => {
      groups.push({ mean: at - gap * k, size: 1 });
      while (groups.length > 1 && groups.at(-2).mean > groups.at(-1).mean) {
        const [a, b] = groups.splice(-2);
        groups.push({ mean: (a.mean * a.size + b.mean * b.size) / (a.size + b.size), size: a.size + b.size });
      }
    });
    const places = groups.flatMap(({ mean, size }) => Array(size).fill(mean)).map((place, k) => place + gap * k);
    const names = ends.map(({ entry, i }, k) => ({
      text: plain(entry.label.length > 26 ? `${entry.label.slice(0, 25)}…` : entry.label) + (entry.divergence ? ` (${entry.divergence})` : ""),
      x: 1, y: places[k], xref: "paper", yref: "paper", xanchor: "left", yanchor: "middle", xshift: 6, showarrow: false, font: { color: colour(i), size: 12 },
    }));
    return Plotly.relayout(figure, { annotations: [figure.layout.annotations[0], ...names] });
  }

  function drawCurves() {
    const cost = costs[state.x], quantity = quantities[state.y], goal = quantity.targets[state.target[state.y]];
    const named = !narrow() && visible().length > 1 && visible().length <= ROOM;
    const ticks = Math.max(3, Math.floor($("figure").clientWidth / 90));
    const layout = base("figure", {
      margin: { l: 50, r: named ? 16 + 8 * Math.min(46, Math.max(...visible().map(({ entry }) => Math.min(26, entry.label.length) + (entry.divergence ? entry.divergence.length + 3 : 0)))) : 12, t: 34, b: 48 }, hovermode: "closest",
      xaxis: axis({ title: { text: cost.words }, type: state.logX ? "log" : "linear", tickformat: cost.log ? "~s" : "", nticks: ticks, rangemode: state.logX ? "normal" : "tozero", ...(state.logX ? decades(visible().flatMap(({ entry }) => entry.x[cost.name]), ticks) : {}) }),
      yaxis: axis({ type: state.logY ? "log" : "linear", tickformat: quantity.share ? "~%" : "", ...(quantity.range && !state.logY ? { range: [Math.min(quantity.range[0], goal ?? 1), Math.max(quantity.range[1], goal ?? 0)] } : {}), ...(state.logY ? decades(visible().flatMap(({ entry }) => entry.y[quantity.name].mean), 9) : {}) }),
      annotations: [{ text: `↑ ${quantity.words}`, xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 8, xshift: -30, showarrow: false, align: "left" }],
      shapes: goal !== undefined && (goal > 0 || !state.logY) ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: goal, y1: goal, line: { color: style("--soft"), width: 1.2, dash: "dot" } }] : [],
    });
    return Plotly.react("figure", traces(), layout, config()).then(nameEnds);
  }

  // The names of agents below an axis, if there are few enough to read them.
  const named = (names) => (names && names.length <= 30 ? { tickvals: names.map((_, i) => i + 1), tickangle: -40, ticklabeloverflow: "allow", ticktext: names.map((name) => plain(name.length > 18 ? `${name.slice(0, 17)}…` : name)) } : {});

  function drawPictures() {
    problems.forEach((problem, p) => {
      if (!problem) return;
      Plotly.react(`distances-${p}`, [{
        type: "bar", x: problem.distances.map((_, i) => i + 1), y: problem.distances, marker: { color: style("--bar") },
        text: problem.farthest ? problem.farthest.map(plain) : undefined, textposition: "none",
        hovertemplate: `${problem.farthest ? "%{text}: " : ""}%{y:.3g}<extra></extra>`,
      }], base(`distances-${p}`, { margin: { l: 45, r: 8, t: 10, b: 42 }, bargap: problem.distances.length > 60 ? 0 : 0.15, xaxis: axis({ title: { text: "agents, the farthest first" }, ...named(problem.farthest) }), yaxis: axis({ title: { text: "‖∇fᵢ(x⁰) − ∇f(x⁰)‖" }, rangemode: "tozero" }) }), config());
      const ground = style("--ground"), bar = { thickness: 10, outlinewidth: 0 };
      Plotly.react(`alignment-${p}`, [{
        type: "heatmap", z: problem.alignment, zmin: -1, zmax: 1, colorscale: [[0, "#D55E00"], [0.5, ground], [1, "#2f8fd0"]],
        colorbar: { ...bar, tickvals: [-1, 0, 1], ticktext: ["opposite", "right angle", "same"] },
        text: problem.names ? problem.names.map((row) => problem.names.map((column) => `${plain(row)} and ${plain(column)}: `)) : undefined,
        hovertemplate: `${problem.names ? "%{text}" : ""}cosine %{z:.2f}<extra></extra>`,
      }], base(`alignment-${p}`, { margin: { l: 45, r: 8, t: 10, b: 42 }, xaxis: axis({ title: { text: "agents, alike ones side by side" }, showgrid: false, showticklabels: false, ticks: "", constrain: "domain" }), yaxis: axis({ title: { text: "agents" }, showgrid: false, showticklabels: false, ticks: "", scaleanchor: "x", constrain: "domain", autorange: "reversed" }) }), config());
      if (!problem.labels) return;
      Plotly.react(`labels-${p}`, [{
        type: "heatmap", z: problem.labels, zmin: 0, colorscale: [[0, ground], [1, "#2f8fd0"]], colorbar: { ...bar, tickformat: ".0%" },
        text: problem.names ? problem.labels.map(() => problem.names.map((name) => `${plain(name)}, `)) : undefined,
        hovertemplate: `${problem.names ? "%{text}" : ""}label %{y}: %{z:.1%}<extra></extra>`,
      }], base(`labels-${p}`, { margin: { l: 45, r: 8, t: 10, b: 42 }, xaxis: axis({ title: { text: "agents, in the same order" }, showgrid: false, showticklabels: false, ticks: "" }), yaxis: axis({ title: { text: "label" }, showgrid: false, autorange: "reversed", ...(problem.labels.length <= 20 ? { dtick: 1 } : {}) }) }), config());
    });
  }

  function fillCosts() {
    const quantity = quantities[state.y], k = state.target[state.y], by = state.x;
    $("plain").textContent = quantity.plain;
    $("finding").textContent = quantity.findings[costs[state.x].name][k];
    $("cost-to-target").hidden = quantity.targets.length === 0; // it is not known what is better
    if (quantity.targets.length === 0) return;
    $("goal").textContent = quantity.goals[k];
    $("target").max = quantity.targets.length - 1;
    $("target").value = k;
    $("target").setAttribute("aria-valuetext", quantity.goals[k]);
    const head = element("tr", {}, element("th", { scope: "col" }, "method"));
    costs.forEach((cost, c) => head.append(element("th", c === by ? { scope: "col", class: "by" } : { scope: "col" }, cost.title)));
    head.append(element("th", { scope: "col" }, "factor"));
    const met = entries.map((entry, i) => ({ i, entry, cell: entry.reached[quantity.name][k] }));
    const price = ({ cell }) => (cell.costs ? cell.costs[by][0] ?? Infinity : Infinity);
    met.sort((a, b) => (a.cell.costs ? 0 : 1) - (b.cell.costs ? 0 : 1) || price(a) - price(b) || a.i - b.i);
    const least = price(met[0]);
    $("costs").tHead.replaceChildren(head);
    $("costs").tBodies[0].replaceChildren(...met.map((one) => costRow(one, least, price(one))));
    $("costs-note").textContent = `Fewest ${costs[by].title} first; the factor compares them with the first. ${quantity.kept} ` +
      (entries.some((entry) => entry.seeds > 1) ? "Means over the seeds, with the least and the most below. A method has reached the target when all its seeds have. " : "") +
      (entries.some((entry) => entry.together) ? "The seeds of a method ran together as one program, and the seconds are those of all of them." : "");
  }

  function costRow({ i, entry, cell }, least, price) {
    const row = element("tr", state.hidden.has(i) && entries.length === data.shown.length ? { class: "off" } : {}, element("th", { scope: "row" }, element("span", { class: "named" }, swatch(i), clipped(entry.label))));
    if (!cell.costs) {
      const some = cell.seeds ? `${cell.seeds} of ${entry.seeds} seeds did; ` : "";
      row.append(element("td", { colspan: costs.length + 1, class: "missed" }, `not reached: ${some}best ${cell.best}`));
      return row;
    }
    costs.forEach((cost, c) => {
      const [mean, low, high] = cell.costs[c], spread = low !== high ? [element("small", {}, `${amount(cost, low)} to ${amount(cost, high)}`)] : [];
      row.append(element("td", {}, amount(cost, mean), ...spread));
    });
    row.append(element("td", {}, least > 0 && Number.isFinite(price) ? `${Number((price / least).toPrecision(3))}×` : "–"));
    return row;
  }

  // The table of all runs: columns are the settings that differ, the values at the end, and the costs.
  const MANY = 6; // with fewer runs, the other tables say it all
  const last = (values) => values.findLast((value) => value !== null) ?? null;
  const listed = { words: "", by: null, up: true };
  const keys = [...new Set(entries.flatMap((entry) => Object.keys(entry.settings)))]
    .filter((key) => new Set(entries.map((entry) => entry.settings[key])).size > 1);
  const runColumns = [
    { title: "run", of: (entry) => entry.label, show: (value) => clipped(value) },
    ...keys.map((key) => ({ title: key, of: (entry) => entry.settings[key] ?? "", show: (value) => clipped(value) })),
    ...quantities.map((q) => ({ title: q.name.replaceAll("_", " "), of: (entry) => last(entry.y[q.name].mean), show: (value) => (value === null ? "–" : q.share ? `${(100 * value).toFixed(1)} %` : Number(value.toPrecision(4)).toString()) })),
    ...costs.map((cost) => ({ title: cost.title, of: (entry) => last(entry.x[cost.name]), show: (value) => amount(cost, value) })),
  ];

  // A run matches if every word is in its label or among its settings, written as key=value.
  function matching() {
    const words = listed.words.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (entry) => [entry.label, ...Object.entries(entry.settings).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
    return [...entries.keys()].filter((i) => words.every((word) => text(entries[i]).includes(word)));
  }

  function compared(a, b) {
    if (a === "" || a === null) return b === "" || b === null ? 0 : 1; // what is not there comes last, either way
    if (b === "" || b === null) return -1;
    const order = Number.isFinite(Number(a)) && Number.isFinite(Number(b)) ? Number(a) - Number(b) : String(a).localeCompare(String(b));
    return listed.up ? order : -order;
  }

  function fillRuns() {
    $("runs").hidden = entries.length < MANY;
    if (entries.length < MANY) return;
    const found = matching();
    if (listed.by !== null) found.sort((i, j) => compared(runColumns[listed.by].of(entries[i]), runColumns[listed.by].of(entries[j])) || i - j);
    const heads = runColumns.map((column, c) => {
      const head = element("th", c === listed.by ? { scope: "col", "aria-sort": listed.up ? "ascending" : "descending" } : { scope: "col" }, column.title);
      head.addEventListener("click", () => { listed.up = listed.by === c ? !listed.up : true; listed.by = c; fillRuns(); });
      return head;
    });
    $("all-runs").tHead.replaceChildren(element("tr", {}, ...heads));
    $("all-runs").tBodies[0].replaceChildren(...found.map((i) => {
      const box = element("input", { type: "checkbox", "aria-label": `draw ${entries[i].label}` });
      box.checked = !state.hidden.has(i);
      box.addEventListener("change", () => { box.checked ? state.hidden.delete(i) : state.hidden.add(i); refresh(); });
      const [label, ...cells] = runColumns.map((column) => column.show(column.of(entries[i])));
      return element("tr", {}, element("th", { scope: "row" }, element("span", { class: "named" }, box, swatch(i), label)), ...cells.map((cell) => element("td", {}, cell)));
    }));
    $("matching").textContent = `${found.length} of ${entries.length} runs`;
  }

  function choices(place, names, pick) {
    names.forEach((name, i) => {
      const button = element("button", { type: "button", "data-name": name }, name.replaceAll("_", " "));
      button.addEventListener("click", () => { pick(i); refresh(); });
      $(place).append(button);
    });
  }

  function chooseX(i) {
    state.x = i;
    state.logX = costs[i].log;
  }

  function chooseY(i) {
    state.y = i;
    state.logY = quantities[i].log && quantities[i].positive;
  }

  function fillMethods() {
    const buttons = entries.map((entry, i) => {
      const button = element("button", { type: "button", "aria-pressed": !state.hidden.has(i) }, swatch(i), clipped(entry.label));
      button.addEventListener("click", () => { state.hidden.has(i) ? state.hidden.delete(i) : state.hidden.add(i); refresh(); });
      return button;
    });
    const every = (text, hidden) => {
      const button = element("button", { type: "button", class: "all" }, text);
      button.addEventListener("click", () => { state.hidden = new Set(hidden); refresh(); });
      return button;
    };
    if (entries.length > 1) buttons.push(every("all", []), every("none", entries.keys()));
    $("methods").replaceChildren(...buttons);
  }

  function refresh() {
    const focused = [...$("methods").children].indexOf(document.activeElement);
    for (const [place, chosen] of [["x", state.x], ["y", state.y]]) {
      [...$(place).querySelectorAll("button")].forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
    }
    $("log-x").checked = state.logX;
    $("log-y").checked = state.logY;
    $("log-y").disabled = !quantities[state.y].positive;
    fillMethods();
    fillRuns();
    if (focused >= 0) $("methods").children[focused].focus();
    fillCosts();
    return drawCurves();
  }

  function redrawAll() {
    refresh();
    drawPictures();
  }

  function print(on) {
    printing = on;
    document.documentElement.classList.toggle("printing", on);
    redrawAll();
    if (!on) document.querySelectorAll(".js-plotly-plot").forEach((figure) => Plotly.Plots.resize(figure));
  }

  $("filter").addEventListener("input", (event) => { listed.words = event.target.value; fillRuns(); });
  $("only").addEventListener("click", () => {
    const kept = new Set(matching());
    state.hidden = new Set([...entries.keys()].filter((i) => !kept.has(i)));
    refresh();
  });
  choices("y", quantities.map((q) => q.name), chooseY);
  choices("x", costs.map((c) => c.title), chooseX);
  $("log-x").addEventListener("change", (event) => { state.logX = event.target.checked; refresh(); });
  $("log-y").addEventListener("change", (event) => { state.logY = event.target.checked; refresh(); });
  $("target").addEventListener("input", (event) => { state.target[state.y] = Number(event.target.value); fillCosts(); drawCurves(); });
  $("drawn").textContent = (entries.some((entry) => entry.seeds > 1) ? "A line is the mean over the seeds that did not diverge, and its band spans them. " : "") +
    (data.shown.length < entries.length ? `At first the figure shows ${data.shown.length} of ${entries.length} methods, from the fewest communications to the most; the table below has all of them. ` : "") +
    "The dotted line is the target. Press a method to hide or show it. Drag in the figure to zoom, double-click to zoom out.";
  dark.addEventListener("change", redrawAll);
  let shape = narrow();
  addEventListener("resize", () => { if (narrow() !== shape) { shape = narrow(); redrawAll(); } });
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  chooseX(0);
  chooseY(0);
  redrawAll();
  $("figure").on("plotly_relayout", (changed) => { if (!("annotations" in changed)) nameEnds(); });
})();
