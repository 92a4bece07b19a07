// Before the page is drawn: the chosen colours, if any were chosen. Without a choice the system's count.
"use strict";
(function () {
  try {
    const theme = localStorage.getItem("pqrun:theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch (error) { /* storage is switched off */ }
})();
