// MathJax 3.2.2 as npm has it (assets/mathjax/), so that formulas need no network.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
    processEscapes: true,
    processEnvironments: true,
  },
  svg: { fontCache: "global", scale: 0.95 },
  options: {
    ignoreHtmlClass: ".*|",
    processHtmlClass: "arithmatex",
    enableMenu: false, // its extras would be loaded from elsewhere
    a11y: { speech: false },
  },
};
