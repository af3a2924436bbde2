// Elements without HTML texts: nothing that a model or a client is called can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `properties` are attributes, handlers (onclick), or `class`; children are elements, texts or lists; null is skipped. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

/** Change a text, if it is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Give the fields of a form these values, by name. */
export function setFields(form, values) {
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) field.value = value;
  }
}

/** A button that copies the text that `make` returns. */
export function copyButton(make) {
  const button = h("button", { type: "button", class: "copy", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(make());
      button.textContent = "Copied";
    } catch {
      const pre = button.parentElement.querySelector("pre");
      if (pre) getSelection().selectAllChildren(pre);
      button.textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }
  return button;
}
