
// A text of the server while it is drawn: its messages from /film extend the film above, which the controls show.
const by = id => document.getElementById(id);
const settings = JSON.parse(by("form").dataset.settings);
let request = null;
by("chatting").hidden = !settings.chat;
by("locked").hidden = !settings.keyed;

function body() {
  const prompt = by("prompt").value;
  const wanted = {model: settings.model, stream: true};
  if (by("chat").checked) wanted.messages = [{role: "user", content: prompt}];
  else if (prompt) wanted.prompt = prompt;
  for (const [name, id] of [["steps", "steps"], ["max_tokens", "tokens"], ["temperature", "temperature"], ["seed", "seed"]]) {
    if (by(id).value !== "") wanted[name] = Number(by(id).value);
  }
  return JSON.stringify(wanted);
}

function take(message) {
  if (message.error) throw new Error(message.error.message);
  if (message.text) {
    film.states = message.states;
    film.texts[0] = message.text;
    open(0);
    return show(0);
  }
  const text = film.texts[0], newest = sample.step === text.frames.length;
  film.states.push(...message.states ?? []);
  if (message.frame) text.frames.push(message.frame);
  if (message.end !== undefined) {
    text.end = message.end;
    document.getElementById("tail").hidden = text.end + 1 >= text.start.length;
  }
  slider.max = text.frames.length;
  show(newest ? text.frames.length : sample.step);
}

async function draw() {
  request?.abort();
  const mine = request = new AbortController();
  by("cancel").disabled = false;
  by("problem").textContent = "";
  by("form").dataset.state = "drawing";
  try {
    const headers = {"Content-Type": "application/json"};
    if (by("key").value) headers.Authorization = `Bearer ${by("key").value}`;
    const answer = await fetch("film", {method: "POST", headers, body: body(), signal: mine.signal});
    if (!answer.ok) return take(await answer.json());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (rest + part.value).split("\n\n");
      rest = events.pop();
      for (const event of events) take(JSON.parse(event.replace(/^data: /, "")));
    }
  } catch (error) {
    if (error.name !== "AbortError") by("problem").textContent = error.message;
  } finally {
    if (request === mine) {
      by("cancel").disabled = true;
      by("form").dataset.state = "done";
    }
  }
}

by("form").addEventListener("submit", event => { event.preventDefault(); draw(); });
by("cancel").addEventListener("click", () => request?.abort());
