// Follow a run that is still going: ask how far it is, and load the page anew when it has ended.

(() => {
  const place = document.getElementById("live");
  if (!place) return;
  const every = 2000;
  let done = Number(place.dataset.done);
  const asked = Number(place.dataset.asked);
  if (done >= asked) return;
  const follow = async () => {
    const reply = await fetch(`${place.dataset.base}/progress`).catch(() => null);
    if (!reply || !reply.ok) return setTimeout(follow, 5 * every);
    const now = await reply.json();
    if (now.done !== done) {
      done = now.done;
      const rate = now.judged ? `, ${now.passed} of ${now.judged} passed` : "";
      place.textContent = `${now.done} of ${now.asked} trials${rate}`;
    }
    if (now.ended) return location.reload();
    return setTimeout(follow, every);
  };
  setTimeout(follow, every);
})();
