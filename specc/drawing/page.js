"use strict";
// Shared by all pages: the page data, and the switch between dark and light mode.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const isDark = () => {
  const chosen = document.documentElement.classList;
  if (chosen.contains("dark") || chosen.contains("light")) return chosen.contains("dark");
  return matchMedia("(prefers-color-scheme: dark)").matches;
};
const themeChanged = [];
byId("theme").addEventListener("click", () => {
  const dark = !isDark();
  document.documentElement.classList.toggle("dark", dark);
  document.documentElement.classList.toggle("light", !dark);
  themeChanged.forEach((redraw) => redraw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themeChanged.forEach((redraw) => redraw()));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
