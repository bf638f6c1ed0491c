// Loads the statistics of a long list after the list itself. Without this script there is a link.

(() => {
  const place = document.getElementById("figures");
  if (!place) return;
  place.setAttribute("aria-busy", "true");
  fetch(place.dataset.part)
    .then(async (reply) => {
      if (!reply.ok) return;
      const made = new DOMParser().parseFromString(await reply.text(), "text/html");
      place.replaceChildren(...made.body.childNodes);
    })
    .catch(() => null)
    .finally(() => place.removeAttribute("aria-busy"));
})();
