// Data from pack in page.py: states [text, level, special]; for each text its start and its frames [t, calls, event, ...]
// with events [position, state, mark, chance, other, its chance, ...]. Text is set as text only, never as HTML.
const film = JSON.parse(document.getElementById("film").textContent);
const [play, slider, select, when, legend, box, hide, detail, about] =
  ["play", "step", "sample", "when", "legend", "text", "hide", "detail", "about"].map(id => document.getElementById(id));
const DOWN = 0, UP = 1, CHANGED = 2;
const HUES = [41, 164, 327, 202, 27, 56];  // of the levels of clusters, as in ddlib.plot
const SECONDS = 12;  // approximate length of a film
const highest = film.levels.length - 1;
// of samples that are drawn as pictures: shape [H, W, C], colours of the states and of the levels
const picture = film.picture, wide = picture ? picture.shape[1] * picture.shape[2] : 1;
const sample = {text: null, places: [], picked: null, step: 0, timer: null};

function element(tag, text, ...classes) {
  const made = document.createElement(tag);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
}

const spelling = state => film.states[state][0];
const levelOf = state => film.states[state][1];
const noWord = level => level > 0 && level === highest;

function dress(node, level, special) {
  node.className = "p";
  if (noWord(level)) node.classList.add("none");
  else if (level > 0) node.classList.add("cluster");
  else if (special) node.classList.add("special");
  node.style.setProperty("--hue", HUES[(level - 1 + HUES.length) % HUES.length]);
}

// colour at a position: with channels that of its pixel, to which each channel gives its part
function colour(i) {
  const channels = picture.shape[2], first = i - i % channels;
  const parts = [0, 1, 2].map(k => picture.colours[sample.now[first + (channels === 3 ? k : 0)].state][k]);
  return `rgb(${parts})`;
}

function percent(chance) {
  if (chance >= 0.9995) return "100 %";
  return chance >= 0.001 ? `${Number((100 * chance).toPrecision(3))} %` : `${chance.toExponential(1)}`;
}

// the states after n frames, and for each position its last event, its frame, and how often it was remasked or replaced
function after(text, step) {
  const now = text.start.map(state => ({state, from: null, event: null, step: 0, back: 0}));
  for (let k = 0; k < step; k++) {
    for (const event of text.frames[k].slice(2)) {
      const before = now[event[0]];
      now[event[0]] = {state: event[1], from: before.state, event, step: k + 1,
        back: before.back + (event[2] === DOWN ? 0 : 1)};
    }
  }
  return now;
}

function show(step) {
  const text = sample.text, last = text.frames.length;
  sample.step = step = Math.min(Math.max(step, 0), last);
  sample.now = after(text, step);
  const counts = film.levels.map(() => 0), given = new Set(text.given);
  const shown = hide.checked ? text.end + 1 : sample.now.length;
  sample.now.forEach((place, i) => {
    const level = levelOf(place.state), spelt = spelling(place.state), {gap, node} = sample.places[i];
    const beside = i > 0 && (level > 0 || levelOf(sample.now[i - 1].state) > 0);
    const [space] = level === 0 ? spelt.match(/^\s*(?=\S)/) ?? [""] : [""];
    gap.data = picture || i >= shown ? "" : beside ? " " : space;
    node.hidden = i >= shown;
    const words = picture ? "" : spelt.slice(space.length);
    if (node.textContent !== words) node.textContent = words;
    dress(node, level, film.states[place.state][2]);
    if (picture) node.style.background = colour(i);
    if (given.has(i)) node.classList.add("given");
    if (place.back) node.classList.add("mended");
    if (place.event && place.step === step) node.classList.add(["new", "up", "changed"][place.event[2]]);
    if (i === sample.picked) node.classList.add("picked");
    counts[level]++;
  });
  const [t, calls] = step ? text.frames[step - 1] : [1, 0];
  const parts = film.levels.map(([name], level) => `${name}: ${counts[level]}`);
  when.textContent = `step ${step} of ${last} · t = ${t.toFixed(3)} · ` +
    `${calls} network call${calls === 1 ? "" : "s"} · ${parts.join(", ")}`;
  slider.value = step;
  slider.setAttribute("aria-valuetext", when.textContent);
  explain();
}

function named(state) {
  const level = levelOf(state), [name, size] = film.levels[level];
  return {sign: level === 0 ? `“${spelling(state).trim() || spelling(state)}”` : spelling(state),
    kind: size === 1 ? name : `${name}, one of ${size}`};
}

function located(i) {
  if (!picture) return `position ${i}`;
  const channels = picture.shape[2], channel = channels === 1 ? "" : `, channel ${i % channels}`;
  return `position ${i} (row ${Math.floor(i / wide)}, column ${Math.floor(i % wide / channels)}${channel})`;
}

function explain() {
  const place = sample.now[sample.picked];
  if (!place) return tell("Point at a position, or tap it, to see in which step its state was drawn, and with what probability.");
  const {sign, kind} = named(place.state), lines = [`${located(sample.picked)}: ${sign} (${kind})`];
  if (sample.text.given.includes(sample.picked)) lines.push("given by the prompt");
  else if (!place.event) lines.push("drawn from the prior at the start; no network call");
  else {
    const [, , mark, chance, ...others] = place.event, from = named(place.from).sign;
    const verb = ["denoised from", "noised from", "replaced"][mark];
    const [t] = sample.text.frames[place.step - 1];
    const how = mark === UP ? "no network call"
      : chance === null ? "probability unknown" : `probability ${percent(chance)}`;
    lines.push(`${verb} ${from} in step ${place.step} (t = ${t.toFixed(3)}): ${how}`);
    const best = [];
    for (let k = 0; k < others.length; k += 2) best.push(`${named(others[k]).sign} ${percent(others[k + 1])}`);
    if (best.length) lines.push(`most probable in this step: ${best.join(", ")}`);
  }
  if (place.back) lines.push(`noised again or replaced ${place.back} time${place.back === 1 ? "" : "s"} so far`);
  tell(lines.join("\n"));
}

// screen readers read only new text
function tell(words) {
  if (detail.textContent !== words) detail.textContent = words;
}

function pick(position) {
  const {places, text} = sample, last = (hide.checked ? Math.min(text.end + 1, places.length) : places.length) - 1;
  places[sample.picked]?.node.classList.remove("picked");
  sample.picked = Math.min(Math.max(position, 0), last);
  places[sample.picked].node.classList.add("picked");
  explain();
}

function stop() {
  clearInterval(sample.timer);
  sample.timer = null;
  play.textContent = "▶ play";
}

function toggle() {
  if (sample.timer !== null) return stop();
  const last = sample.text.frames.length;
  if (sample.step >= last) show(0);
  play.textContent = "❚❚ pause";
  sample.timer = setInterval(() => {
    show(sample.step + 1);
    if (sample.step >= last) stop();
  }, Math.min(Math.max(1000 * SECONDS / last, 60), 600));
}

function open(number) {
  stop();
  const text = sample.text = film.texts[number];
  select.value = number;
  slider.max = text.frames.length;
  sample.picked = null;
  sample.places = text.start.map((_, i) => {
    const gap = document.createTextNode(""), node = element("span", "", "p");
    node.dataset.position = i;
    return {gap, node};
  });
  box.replaceChildren(...sample.places.flatMap(({gap, node}) => [gap, node]));
  document.getElementById("tail").hidden = text.end + 1 >= text.start.length;
}

// #sample=2&step=12&position=5
function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = key => Number(asked.get(key)) || 0;
  open(Math.min(Math.max(number("sample"), 0), film.texts.length - 1));
  show(number("step"));
  if (asked.has("position")) pick(number("position"));
}

function key(event) {
  const at = event.target, inText = at === box;
  if (event.ctrlKey || event.metaKey || event.altKey || at === select || at.matches("textarea, input:not(#step)")) return;
  const acts = {
    ArrowLeft: () => inText ? pick((sample.picked ?? 1) - 1) : (stop(), show(sample.step - 1)),
    ArrowRight: () => inText ? pick((sample.picked ?? -1) + 1) : (stop(), show(sample.step + 1)),
    ...picture && inText ? {
      ArrowUp: () => pick((sample.picked ?? wide) - wide),
      ArrowDown: () => pick((sample.picked ?? -wide) + wide),
    } : {},
    Home: () => { stop(); show(0); },
    End: () => { stop(); show(Infinity); },
    " ": toggle,
  };
  if (!(event.key in acts) || (event.key === " " && ["BUTTON", "SUMMARY"].includes(at.tagName))) return;
  event.preventDefault();
  acts[event.key]();
}

film.texts.forEach((_, i) => select.append(new Option(film.numbers?.[i] ?? i, i)));
document.getElementById("which").hidden = film.texts.length < 2;
if (picture) {
  box.classList.add("picture");
  box.style.setProperty("--columns", wide);
  box.style.setProperty("--wide", picture.shape[1] / picture.shape[0]);
  box.style.setProperty("--cell", 1 / picture.shape[2]);
  box.setAttribute("aria-label", "Picture at this step; arrow keys go from position to position");
}
film.levels.forEach(([name], level) => {
  const item = element("li", "");
  if (picture) {
    const swatch = element("span", "", "swatch");
    swatch.style.background = `rgb(${picture.legend[level]})`;
    item.append(swatch, ` ${name}`);
    return legend.append(item);
  }
  const chip = element("span", level === 0 ? "token" : noWord(level) ? "_" : `‹${name}›`);
  dress(chip, level, 0);
  item.append(chip, level === 0 ? "" : noWord(level) ? ` ${name}` : "");
  legend.append(item);
});
[["new", "new", "in this step"], ["up", "up", "noised again in this step"], ["changed", "changed", "replaced in this step"],
  ["mended", "dotted", "noised again or replaced before"], ["given", picture ? "border" : "bold", "of the prompt"]].forEach(([kind, word, what]) => {
  const item = element("li", "");
  item.append(element("span", word, "p", kind), ` ${what}`);
  legend.append(item);
});
for (const [name, value] of film.about) about.append(element("dt", name), element("dd", value));

play.addEventListener("click", toggle);
slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
select.addEventListener("change", () => { open(Number(select.value)); show(0); });
hide.addEventListener("change", () => show(sample.step));
for (const kind of ["pointerover", "click"]) {
  box.addEventListener(kind, event => {
    const at = event.target.dataset.position;
    if (at !== undefined) pick(Number(at));
  });
}
document.addEventListener("keydown", key);
addEventListener("hashchange", follow);
follow();
