import katex from 'katex'

const MOST_MACROS = 300
/** The browser gives up on a page whose elements lie too deep in each other. A fraction in a fraction is about 6 deeper. */
const DEEPEST = 300

/** Draw a formula; the text is untrusted. Raises an error if it is not understood. */
export function draw(tex: string, display: boolean): HTMLElement {
  const made = document.createElement('span')
  // Nothing that links, loads or names classes (`trust`), no sizes beyond the page, and no macros that keep expanding.
  katex.render(tex, made, { displayMode: display, output: 'htmlAndMathml', trust: false, strict: 'ignore', throwOnError: true, maxSize: 20, maxExpand: MOST_MACROS, macros: {} })
  if (depth(made) > DEEPEST) throw new Error('its parts lie too deep in each other')
  return made
}

/** Without recursion, which is what the limit is for. */
function depth(root: Element): number {
  let [deepest, level]: [number, Element[]] = [0, [root]]
  while (level.length > 0 && deepest <= DEEPEST) {
    level = level.flatMap((each) => Array.from(each.children))
    deepest += 1
  }
  return deepest
}
