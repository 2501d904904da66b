// Each picture is an image first, for print and for readers without scripts. This script makes the pictures
// interactive, in the available width.
const specs = JSON.parse(document.getElementById("specs").textContent);
const stills = {}, drawn = {};
function draw() {
  for (const [id, [wide, narrow]] of Object.entries(specs)) {
    const place = document.querySelector(`#${id} .chart`), size = place.clientWidth < 430 ? narrow : wide;
    if (!place.clientWidth) continue; // folded
    stills[id] ??= place.innerHTML;
    if (drawn[id] === size || matchMedia("print").matches) continue;
    drawn[id] = size;
    const options = {mode: "vega-lite", renderer: "svg", actions: false};
    vegaEmbed(place, size, options).then(() => place.querySelector("svg").setAttribute("aria-hidden", "true"))
      .catch(() => { place.innerHTML = stills[id]; });
  }
}
draw();
addEventListener("resize", draw);
addEventListener("toggle", draw, true); // a part was unfolded
