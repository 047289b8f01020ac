// FedPD beside FedAvg on three agents with two parameters. tests/test_play.py compares the iterates with the package's.
const Play = (() => {
  const ANGLES = [2.1, 1.5, 1.5], CURVATURES = [0.12, 1.0], START = [2.0, 1.9];
  const MINIMA = [[1.5, -1.8], [-2.0, -1.9], [-1.7, 2.1]];

  // The Hessians: turned ellipses with the curvatures along and across their long axis.
  const HESSIANS = ANGLES.map((a) => {
    const [along, across] = CURVATURES, c = Math.cos(a), s = Math.sin(a);
    const off = (along - across) * c * s;
    return [[along * c * c + across * s * s, off], [off, along * s * s + across * c * c]];
  });
  const add = (u, v, k = 1) => [u[0] + k * v[0], u[1] + k * v[1]];
  const times = (A, v) => A.map((row) => row[0] * v[0] + row[1] * v[1]);
  const mean = (vectors) => vectors.reduce((sum, v) => add(sum, v, 1 / vectors.length), [0, 0]);
  const gradient = (i, x, minima) => times(HESSIANS[i], add(x, minima[i], -1));

  // ||grad f(x)||^2 of the mean of the agents' losses.
  function stationarity(x, minima) {
    const g = mean(minima.map((_, i) => gradient(i, x, minima)));
    return g[0] * g[0] + g[1] * g[1];
  }

  // The minimum of the mean: (sum A_i) x = sum A_i m_i.
  function minimum(minima) {
    const A = [0, 1].map((j) => [0, 1].map((k) => HESSIANS.reduce((sum, H) => sum + H[j][k], 0)));
    const b = minima.map((m, i) => times(HESSIANS[i], m)).reduce((u, v) => add(u, v), [0, 0]);
    const det = A[0][0] * A[1][1] - A[0][1] * A[1][0];
    return [(A[1][1] * b[0] - A[0][1] * b[1]) / det, (A[0][0] * b[1] - A[1][0] * b[0]) / det];
  }

  // The local oracle: gradient steps on f_i(x) + <dual, x - x0> + |x - x0|^2 / (2 eta).
  function solve(i, x, minima, { step, steps }, dual = [0, 0], x0 = [0, 0], eta = Infinity) {
    for (let q = 0; q < steps; q++) {
      const g = add(add(gradient(i, x, minima), dual), add(x, x0, -1), 1 / eta);
      x = add(x, g, -step);
    }
    return x;
  }

  // Algorithm 2. skipped[r] says whether round r skips its communication. Returns the mean of x_0 after every round.
  function fedpd(minima, { eta, rounds, skipped = [], ...local }) {
    let agents = minima.map(() => ({ x: START, x0: START, dual: [0, 0] }));
    const path = [START];
    for (let r = 0; r < rounds; r++) {
      agents = agents.map(({ x, x0, dual }, i) => {
        x = solve(i, x, minima, local, dual, x0, eta);
        dual = add(dual, add(x, x0, -1), 1 / eta);
        return { x, dual, x0: add(x, dual, eta) };
      });
      const server = mean(agents.map((agent) => agent.x0));
      if (!skipped[r]) agents = agents.map((agent) => ({ ...agent, x0: server }));
      path.push(server);
    }
    return path;
  }

  // FedAvg: local steps from the server's model, then the mean.
  function fedavg(minima, { rounds, ...local }) {
    const path = [START];
    for (let r = 0; r < rounds; r++) {
      path.push(mean(minima.map((_, i) => solve(i, path[r], minima, local))));
    }
    return path;
  }

  return { MINIMA, START, HESSIANS, stationarity, minimum, fedpd, fedavg };
})();

if (typeof module !== "undefined") module.exports = Play;
else document.addEventListener("DOMContentLoaded", () => {
  const root = document.getElementById("play");
  if (!root) return;
  const ROUNDS = 80, SIZE = 300, WINDOW = 2.8, LOWEST = -16;
  const METHODS = [["FedAvg", "vermilion"], ["FedPD", "blue"]];
  const minima = Play.MINIMA.map((m) => [...m]);
  const coins = [];  // the same coins at every p, so that a slider moves the curve and nothing else
  for (let state = 7; coins.length < ROUNDS;) coins.push((state = (state * 48271) % 2147483647) / 2147483647);
  let paths = {}, shown = ROUNDS, timer = null;

  root.innerHTML = `
    <form class="controls">
      <label>eta <input type="range" name="eta" min="-1" max="1" step="0.05" value="0"><output></output></label>
      <label>p, the probability of skipping <input type="range" name="p" min="0" max="0.9" step="0.05" value="0"><output></output></label>
      <label>local steps <input type="range" name="steps" min="1" max="40" step="1" value="10"><output></output></label>
      <span><button type="button" name="play">Play</button> <button type="button" name="reset">Reset</button></span>
    </form>
    <div class="pair"><svg class="map" viewBox="0 0 ${SIZE} ${SIZE}" role="img" aria-label="The paths of both methods"></svg>
    <svg class="errors" viewBox="0 0 400 ${SIZE}" role="img" aria-label="The errors of both methods"></svg></div>
    <p class="finding" aria-live="polite"></p>`;
  const form = root.querySelector("form"), map = root.querySelector(".map"), errors = root.querySelector(".errors");
  const place = ([x, y]) => [(x / WINDOW + 1) * SIZE / 2, (1 - y / WINDOW) * SIZE / 2];
  const settings = () => ({
    eta: 10 ** form.eta.value, p: +form.p.value, steps: +form.steps.value,
  });

  function compute() {
    const { eta, p, steps } = settings();
    const skipped = coins.map((coin) => coin < p);
    const outputs = form.querySelectorAll("output");
    [eta.toFixed(2), p.toFixed(2), steps].forEach((text, i) => { outputs[i].textContent = text; });
    paths = {
      FedAvg: Play.fedavg(minima, { rounds: ROUNDS, step: 0.5, steps }),
      FedPD: Play.fedpd(minima, { rounds: ROUNDS, eta, skipped, step: 1 / (1 + 1 / eta), steps }),
    };
    paths.cost = skipped.reduce((all, one) => [...all, all.at(-1) + !one], [0]);
    draw();
  }

  function draw() {
    const line = (points, hue) => `<polyline class="path" style="stroke: var(--hue-${hue})" points="${points.map((p) => p.map((z) => z.toFixed(1))).join(" ")}"/>`;
    const parts = [`<rect class="frame" width="${SIZE}" height="${SIZE}"/>`];
    const goal = place(Play.minimum(minima));
    parts.push(`<circle class="goal" cx="${goal[0]}" cy="${goal[1]}" r="8"/>`);
    for (const [name, hue] of METHODS) {
      const points = paths[name].slice(0, shown + 1).map((x) => place(x.map((z) => Math.max(-99, Math.min(99, z)))));
      parts.push(line(points, hue), `<circle cx="${points.at(-1)[0]}" cy="${points.at(-1)[1]}" r="4" style="fill: var(--hue-${hue})"/>`);
    }
    minima.forEach((m, i) => {
      const [x, y] = place(m);
      parts.push(`<circle class="own handle" data-agent="${i}" tabindex="0" cx="${x}" cy="${y}" r="9"><title>The minimum of client ${i + 1}: drag it</title></circle>`);
    });
    map.innerHTML = parts.join("");

    const left = 44, top = 22, bottom = SIZE - 30, width = 290;
    const scale = (s) => bottom - (Math.max(LOWEST, Math.min(2, Math.log10(s + 1e-99))) - LOWEST) / (2 - LOWEST) * (bottom - top);
    const axes = [`<path class="axis" d="M${left} ${top}V${bottom}H${left + width}"/>`, `<text x="4" y="14">error ‖∇f‖²</text>`,
      `<text x="${left + width / 2}" y="${SIZE - 4}" text-anchor="middle">communications (0 to ${ROUNDS})</text>`];
    for (let power = LOWEST; power <= 0; power += 4) {
      const y = scale(10 ** power);
      axes.push(`<path class="grid" d="M${left} ${y}h${width}"/><text x="${left - 6}" y="${y + 4}" text-anchor="end">1e${power}</text>`);
    }
    const ends = [];
    for (const [name, hue] of METHODS) {
      const cost = (r) => (name === "FedPD" ? paths.cost[r] : r);
      const points = paths[name].slice(0, shown + 1).map((x, r) => [left + cost(r) / ROUNDS * width, scale(Play.stationarity(x, minima))]);
      axes.push(line(points, hue));
      ends.push([name, hue, points.at(-1)]);
    }
    const apart = Math.abs(ends[0][2][1] - ends[1][2][1]) < 14 ? 14 : 0;
    ends.forEach(([name, hue, [x, y]], i) => axes.push(`<text x="${x + 6}" y="${y + 4 - i * apart}" style="fill: var(--hue-${hue})">${name}</text>`));
    errors.innerHTML = axes.join("");
    const error = (name) => Play.stationarity(paths[name][shown], minima);
    const tell = (name) => (Number.isFinite(error(name)) && error(name) < 1e6 ? error(name).toExponential(1) : "no finite value: it diverged");
    root.querySelector(".finding").textContent = `After ${shown} rounds ‖∇f‖² is ${tell("FedAvg")} with FedAvg (${shown} communications) and ${tell("FedPD")} with FedPD (${paths.cost[shown]} communications).`;
  }

  function play() {
    clearInterval(timer);
    shown = 0;
    timer = setInterval(() => { shown += 1; draw(); if (shown >= ROUNDS) clearInterval(timer); }, 60);
  }

  function move(i, event) {
    const box = map.getBoundingClientRect();
    const at = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    minima[i] = [(2 * at[0] - 1) * WINDOW, (1 - 2 * at[1]) * WINDOW].map((z) => Math.max(-WINDOW, Math.min(WINDOW, z)));
    compute();
  }

  map.addEventListener("pointerdown", (event) => {
    const i = event.target.dataset.agent;
    if (i === undefined) return;
    event.preventDefault();
    clearInterval(timer);
    shown = ROUNDS;
    const follow = (next) => move(+i, next);
    window.addEventListener("pointermove", follow);
    window.addEventListener("pointerup", () => window.removeEventListener("pointermove", follow), { once: true });
  });
  map.addEventListener("keydown", (event) => {
    const i = event.target.dataset.agent, by = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
    if (i === undefined || !by) return;
    event.preventDefault();
    minima[i] = minima[i].map((z, k) => Math.max(-WINDOW, Math.min(WINDOW, z + by[k])));
    compute();
    map.querySelector(`[data-agent="${i}"]`).focus();
  });
  form.addEventListener("input", () => { clearInterval(timer); shown = ROUNDS; compute(); });
  form.play.addEventListener("click", play);
  form.reset.addEventListener("click", () => {
    form.eta.value = 0; form.p.value = 0; form.steps.value = 10;
    Play.MINIMA.forEach((m, i) => { minima[i] = [...m]; });
    shown = ROUNDS;
    compute();
  });
  compute();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play();
});
