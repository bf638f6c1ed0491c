// Loads the parts of a page that take longer after the page itself. Without this script each is a
// link.

for (const place of document.querySelectorAll("[data-part]")) {
  place.setAttribute("aria-busy", "true");
  fetch(place.dataset.part)
    .then(async (reply) => {
      if (!reply.ok) return;
      const made = new DOMParser().parseFromString(await reply.text(), "text/html");
      place.replaceChildren(...made.body.childNodes);
    })
    .catch(() => null)
    .finally(() => place.removeAttribute("aria-busy"));
}
