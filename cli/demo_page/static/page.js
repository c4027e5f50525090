// The page: takes a picture from wherever it comes, sends it, and shows what comes back.

const byId = (id) => document.getElementById(id);
const formSelect = byId("form");

let last = null; // the picture on show: {blob, name}
let current = null; // aborts the request that is under way

/** An element with a class and text, holding others. */
function make(tag, { className = "", text = "", ...fields } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function bar(share) {
  const filled = make("i");
  filled.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("div", { className: "bar", ariaHidden: "true" }, filled);
}

class Problem extends Error {
  constructor(text, again = null) {
    super(text);
    this.again = again;
  }
}

/** JSON from the page's program; a Problem where it says what is wrong, or is gone. */
async function ask(path, again, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The page's own program does not answer: is onestream demo page still running?", again);
  }
  let content;
  try {
    content = await response.json();
  } catch {
    throw new Problem(`The page's own program failed (${response.status}); its terminal says more.`, again);
  }
  if (!response.ok) throw new Problem(content.error, content.again ? again : null);
  return content;
}

function say(text) {
  byId("status").textContent = text;
}

function showProblem(problem) {
  byId("problem").hidden = problem === null;
  if (problem === null) return;
  if (!(problem instanceof Problem)) problem = new Problem(String(problem));
  say("");
  byId("problem-text").textContent = problem.message;
  byId("again").hidden = problem.again === null;
  byId("again").onclick = problem.again;
}

async function start() {
  showProblem(null);
  say("Asking the server …");
  try {
    const offered = await ask("api/pipelines", start);
    byId("server").textContent = offered.server;
    formSelect.replaceChildren(...offered.pipelines.map(({ name, digest }) => {
      const option = make("option", { text: name, value: name });
      option.dataset.digest = digest;
      return option;
    }));
    byId("unreadable").textContent = offered.unreadable.map((reason) => `Left out: ${reason}.`).join(" ");
    byId("samples").replaceChildren(...offered.samples.map(sample));
    showLegend(offered.legend);
    say("Ready.");
    if (last) await look(last);
  } catch (problem) {
    showProblem(problem);
  }
}

function sample(name) {
  const title = name.replace(/\.\w+$/, "");
  const button = make("button", { type: "button", title, ariaPressed: "false" },
    make("img", { src: `api/samples/${name}`, alt: `Sample photo: ${title}` }));
  button.onclick = async () => {
    try {
      const blob = await (await fetch(`api/samples/${name}`)).blob();
      look({ blob, name });
    } catch {
      showProblem(new Problem("The page's own program does not answer: is onestream demo page still running?", () => button.click()));
    }
  };
  button.dataset.name = name;
  return make("li", {}, button);
}

async function look(picture) {
  last = picture;
  if (!formSelect.value) return start(); // the server was not there before; start comes back here
  current?.abort();
  const mine = (current = new AbortController());
  for (const button of byId("samples").querySelectorAll("button")) {
    button.ariaPressed = String(button.dataset.name === picture.name);
  }
  showProblem(null);
  say(`Looking at ${picture.name} …`);
  byId("results").classList.add("old");
  try {
    const found = await ask(`api/look?form=${encodeURIComponent(formSelect.value)}`, () => look(picture), {
      method: "POST", body: picture.blob, signal: mine.signal, headers: { "Content-Type": "application/octet-stream" },
    });
    show(picture, found);
    say(`${picture.name}: done.`);
  } catch (problem) {
    if (problem.name === "AbortError") return;
    byId("results").hidden = true;
    showProblem(problem.again === null ? new Problem(`${picture.name}: ${problem.message}`) : problem);
  }
}

function show(picture, { seen, answer, time, training, parity }) {
  const results = byId("results");
  showOriginal(picture);
  showBoxes(answer);
  showSeen(seen);
  byId("answer").replaceChildren(...ANSWERS[answer.kind](answer));
  showTime(time);
  showTraining(training);
  showParity(parity, answer.kind === "objects" ? "answer" : "class");
  results.classList.remove("old");
  results.hidden = false;
}

function showOriginal({ blob, name }) {
  const image = byId("original");
  const note = byId("original-note");
  const size = blob.size < 1e6 ? `${Math.ceil(blob.size / 1e3)} kB` : `${(blob.size / 1e6).toFixed(1)} MB`;
  URL.revokeObjectURL(image.src);
  byId("picture").hidden = false;
  note.textContent = `${name}, ${size}`;
  image.onload = () => (note.textContent = `${name}, ${image.naturalWidth} × ${image.naturalHeight}, ${size}`);
  image.onerror = () => {
    byId("picture").hidden = true;
    note.textContent = `${name}, ${size}: the server reads it, but this browser cannot show it.`;
  };
  image.src = URL.createObjectURL(blob);
}

/** An element of a drawing over the picture, with its attributes. */
function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/** The outlines over the picture: both are fitted into the same place in the same way. */
function showBoxes({ objects = [], width = 1, height = 1 }) {
  const boxes = byId("boxes");
  boxes.closest(".card").classList.toggle("wide", objects.length > 0);
  const letters = Math.max(width, height) * 0.03;
  boxes.setAttribute("viewBox", `0 0 ${width} ${height}`);
  // The best last, so that it lies on top.
  boxes.replaceChildren(...objects.map(({ label, quad, color }) => {
    const [x0, y0] = [0, 1].map((axis) => Math.max(0, Math.min(...quad.map((corner) => corner[axis]))));
    const name = draw("text", { x: x0 + letters / 4, y: y0 + letters, "font-size": letters }, label);
    const group = draw("g", { color });
    group.append(draw("polygon", { points: quad.join(" ") }), name);
    return group;
  }).reverse());
}

function showSeen(seen) {
  const image = byId("seen");
  image.hidden = seen.image === null;
  if (seen.image) image.src = seen.image;
  const size = seen.image ? `${seen.width} × ${seen.height}, ` : "";
  byId("seen-note").textContent = size + seen.source;
  byId("operations").replaceChildren(...seen.operations.map((text) => make("li", { text })));
  byId("digest").textContent = formSelect.selectedOptions[0]?.dataset.digest.slice(0, 12) ?? "";
}

const ANSWERS = {
  classes({ labels }) {
    const items = labels.map(({ label, score }) => make("li", {},
      make("span", { className: "label", text: label }),
      make("span", { className: "score", text: score.toFixed(3) }),
      bar(score)));
    return [make("ol", { className: "classes" }, ...items)];
  },
  objects({ objects, nothing, note }) {
    const words = make("p", { className: "quiet", text: objects.length ? note : nothing });
    if (!objects.length) return [words];
    const items = objects.map(({ what, where, score, color }) => {
      const swatch = make("i", { className: "swatch", ariaHidden: "true" });
      swatch.style.backgroundColor = color;
      return make("li", {},
        make("span", { className: "label" }, swatch, what),
        make("span", { className: "score", text: score === null ? "" : score.toFixed(3) }),
        make("small", { className: "quiet", text: where }));
    });
    return [make("ol", { className: "classes", id: "objects" }, ...items), words];
  },
  matte({ composed, matte, person, why }) {
    const share = `${Math.round(100 * person)} % of the network's picture is person.`;
    return [
      composed
        ? make("img", { className: "composed", id: "composed", src: composed, alt: "The person before the pipeline's background" })
        : make("p", { className: "quiet", text: `Not composed: ${why}` }),
      make("img", { className: "matte", id: "matte", src: matte, alt: "The matte: white is person" }),
      make("p", { className: "quiet", text: share }),
    ];
  },
  raw({ outputs }) {
    return [make("ul", {}, ...outputs.map((text) => make("li", { text })))];
  },
};

function showTime({ total_ms: total, parts, requests, precision }) {
  byId("parts").replaceChildren(...parts.map(({ name, what, ms }) => make("tr", {},
    make("th", { scope: "row" }, name, make("small", { text: what }), bar(ms / total)),
    make("td", { text: ms.toFixed(1) }))));
  byId("total").textContent = total.toFixed(1);
  const counted = requests === 1
    ? "One request. Queue and steps by Triton's statistics; transfer is the rest of what the client saw."
    : `Others used the server meanwhile: queue and steps are means over ${requests} requests.`;
  byId("time-note").textContent = `The network is in ${precision}. ${counted}`;
}

function showTraining({ image, variations, why }) {
  byId("training").hidden = byId("drawn").hidden = image === null;
  if (image) byId("training").src = image;
  byId("training-note").textContent = why ??
    "First as it is served, then as the first epochs of training would see it, by the augmentation that the page was started with.";
  byId("variations").replaceChildren(...variations.map((text) => make("li", { text })));
}

function showParity({ reference, rows, why }, unit) {
  byId("parity-note").textContent = why ??
    "The served pixels against the reference's, which are those of training on PIL images. Beside them: what usual code would feed the network.";
  const maps = rows.map((row) => showMap(row, unit));
  if (reference) maps.unshift(showReference(reference));
  byId("maps").replaceChildren(...maps);
}

function showReference({ image, answer }) {
  const caption = make("figcaption", {}, make("strong", { text: "the reference: Pillow and NumPy, plain and slow" }));
  if (answer) caption.append(make("div", { text: answer }));
  return make("figure", {}, make("img", { src: image, alt: "The reference's preprocessed picture" }), caption);
}

function showMap({ name, why, heat, max, mean, equal, answer, same }, unit) {
  const caption = make("figcaption", {}, make("strong", { text: name }));
  if (why) {
    caption.append(why);
    return make("figure", {}, caption);
  }
  const levels = max === 1 ? "1 level" : `${max} levels`;
  if (answer) {
    const flipped = same === false;
    caption.append(make("div", { className: flipped ? "flipped" : "", text: answer + (flipped ? ` (another ${unit})` : "") }));
  }
  caption.append(make("div", { text: `at most ${levels} apart, mean ${mean.toFixed(2)}, ${(100 * equal).toFixed(1)} % equal` }));
  return make("figure", {}, make("img", { src: heat, alt: `Heat map of ${name}: at most ${levels} apart` }), caption);
}

function showLegend({ image, ticks }) {
  byId("legend").src = image;
  byId("ticks").replaceChildren(...ticks.map(({ level, at }) => {
    const item = make("li", { text: String(level) });
    item.style.left = `${100 * at}%`;
    return item;
  }));
}

const file = byId("file");
byId("open").onclick = () => file.click();
file.onchange = () => {
  if (file.files.length) look({ blob: file.files[0], name: file.files[0].name });
  file.value = ""; // so that the same file can be chosen again
};
formSelect.onchange = () => last && look(last);

const drop = byId("drop");
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  takeFrom(event.dataTransfer);
});
document.addEventListener("paste", (event) => takeFrom(event.clipboardData));

function takeFrom(transfer) {
  const [given] = transfer.files;
  if (given) look({ blob: given, name: given.name });
  else showProblem(new Problem("That holds no file: drop or paste a picture itself, not a link to one."));
}

const camera = byId("camera");
const video = byId("video");

byId("webcam").onclick = async () => {
  showProblem(null);
  if (!navigator.mediaDevices) {
    showProblem(new Problem("Browsers give webcams to pages at 127.0.0.1 and over https only."));
    return;
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
    camera.showModal();
  } catch (error) {
    showProblem(new Problem(`No webcam: ${error.message}`));
  }
};
byId("take").onclick = () => {
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  // PNG keeps the pixels that the camera gave.
  canvas.toBlob((blob) => blob && look({ blob, name: "webcam.png" }), "image/png");
  camera.close();
};
byId("leave").onclick = () => camera.close();
camera.onclose = () => {
  video.srcObject?.getTracks().forEach((track) => track.stop());
  video.srcObject = null;
};

start();
