/** Mermaid diagrams, drawn as pictures: nothing in a picture runs, links or loads. */
import { el, icon } from './dom'
import { mermaid } from './load'
import type { Look } from './mermaid'
import { Cache, keepingPlace, whenSeen } from './seen'

/** Kinds whose time to draw grows with the length of their text; some others can be made to draw without end. */
const KINDS: Readonly<Record<string, string>> = {
  graph: 'Flowchart',
  flowchart: 'Flowchart',
  'flowchart-elk': 'Flowchart',
  sequenceDiagram: 'Sequence diagram',
  classDiagram: 'Class diagram',
  'classDiagram-v2': 'Class diagram',
  stateDiagram: 'State diagram',
  'stateDiagram-v2': 'State diagram',
  erDiagram: 'Entity relationship diagram',
  journey: 'User journey',
  gantt: 'Gantt chart',
  pie: 'Pie chart',
  quadrantChart: 'Quadrant chart',
  requirementDiagram: 'Requirement diagram',
  gitGraph: 'Git graph',
  mindmap: 'Mind map',
  timeline: 'Timeline',
  'xychart-beta': 'Chart',
  xychart: 'Chart',
}
/** With more, the page would stand still for more than a moment. */
const MOST_TEXT = 12_000
const MOST_LINES = 250
/** Long labels are broken into lines piece by piece. */
const MOST_LINE = 1_000
/** In pixels, and in square pixels. */
const MOST_SIDE = 20_000
const MOST_AREA = 40_000_000
// Settings and styles of the text; the colours are those of the editor.
const SETTINGS = /%%\{[\s\S]*?(?:\}%%|$)/g
const FRONT = /^\s*---\s*\n([\s\S]*?)\n\s*---\s*\n/

/** A drawn diagram. */
interface Drawn {
  readonly address: string
  readonly width: number
  readonly height: number
}

/** What was drawn, or why it cannot be, or that it is being drawn. */
const drawn = new Cache<Drawn | string | Promise<Drawn | string>>(60)
const redraws = new WeakMap<HTMLElement, () => void>()
let look: Look | undefined
let counter = 0

/** The drawing of a diagram, and the button that shows its source in its place. */
export function diagram(text: string, source: HTMLElement): { readonly element: HTMLElement; readonly toggle: HTMLButtonElement } {
  const { kind, name } = about(text)
  const drawing = el('div', { class: 'drawing', tabindex: 0, role: 'region', 'aria-label': name, hidden: true })
  const note = el('div', { class: 'drawing-note', hidden: true })
  const toggle = el('button', { class: 'icon-button', type: 'button', hidden: true })
  let open = true
  const show = (next: boolean): void => {
    open = next
    source.hidden = !open
    drawing.hidden = open
    const label = open ? 'Show the diagram' : 'Show the source of the diagram'
    toggle.title = label
    toggle.setAttribute('aria-label', label)
    toggle.replaceChildren(icon(open ? 'type-hierarchy' : 'code'))
  }
  toggle.addEventListener('click', () => { show(!open) })
  const element = el('div', { class: 'diagram' }, drawing, note, source)
  const put = (made: Drawn | string): void => {
    if (typeof made === 'string') {
      note.textContent = made
      note.hidden = false
      toggle.hidden = true
      show(true)
      return
    }
    const { address, width, height } = made
    const first = toggle.hidden
    const picture = el('img', { src: address, alt: name, width, height, decoding: 'sync' })
    picture.addEventListener('error', () => { put('This diagram cannot be shown.') })
    drawing.replaceChildren(picture)
    toggle.hidden = false
    if (first) show(false)
  }
  const why = refused(text, kind)
  if (why !== undefined) {
    put(why)
    return { element, toggle }
  }
  const draw = async (): Promise<void> => {
    const made = await drawnOf(text)
    keepingPlace(element, () => { put(made) })
  }
  const known = drawn.get(text)
  if (known !== undefined && !(known instanceof Promise)) put(known)
  else whenSeen(element, draw)
  redraws.set(element, () => { whenSeen(element, draw) })
  return { element, toggle }
}

/** The kind and the accessible name of a diagram. */
function about(text: string): { kind: string; name: string } {
  const body = text.replace(SETTINGS, '').replace(FRONT, '').replace(/^\s*%%.*$/gm, '')
  const kind = /^\s*([\w-]+)/.exec(body)?.[1] ?? ''
  const words = (name: string, within: string): string | undefined => new RegExp(`^\\s*${name}\\s*:?[ \\t]*(\\S[^\\n{]*)$`, 'm').exec(within)?.[1]?.trim()
  const title = words('accTitle', body) ?? words('title', FRONT.exec(text)?.[1] ?? '') ?? words('(?:pie )?(?:showData )?title', body)
  const more = words('accDescr', body)
  return { kind, name: `${KINDS[kind] ?? 'Diagram'}${title === undefined ? '' : `: ${title}`}${more === undefined ? '' : `. ${more}`}`.slice(0, 400) }
}

/** Why a diagram is not drawn at all. */
function refused(text: string, kind: string): string | undefined {
  if (!(kind in KINDS)) return kind === '' ? 'This diagram is empty.' : `Diagrams of the kind “${kind.slice(0, 40)}” are not drawn here.`
  if (text.length > MOST_TEXT || text.split(/[\n;]/).length > MOST_LINES || text.split('\n').some((line) => line.length > MOST_LINE)) return 'This diagram is too large to be drawn.'
  // Days that are left out are counted one by one, and so are ticks.
  if (kind === 'gantt' && (/^\s*(?:excludes|includes|tickInterval)\b/m.test(text) || /\b\d{5,}\b/.test(text))) return 'Gantt charts with excluded days, tick intervals or years beyond 9999 are not drawn here.'
  return undefined
}

async function drawnOf(text: string): Promise<Drawn | string> {
  const known = drawn.get(text)
  if (known !== undefined) return known
  const making = make(text)
  drawn.set(text, making)
  const made = await making
  // Another theme may have come meanwhile.
  if (drawn.get(text) === making) drawn.set(text, made)
  return made
}

async function make(text: string): Promise<Drawn | string> {
  const body = text.replace(SETTINGS, '').replace(FRONT, '')
  let library
  try {
    library = await mermaid()
  } catch {
    return 'This diagram cannot be drawn, because a part of the extension could not be loaded.'
  }
  look ??= lookOf()
  const place = el('div', { class: 'drawing-place', 'aria-hidden': 'true', 'data-kind': about(text).kind })
  place.style.fontFamily = look.font
  place.style.fontSize = `${look.size}px`
  document.body.append(place)
  try {
    counter += 1
    return picture(await library.draw(legible(body), `diagram${counter}`, look, place), look.text)
  } catch (problem) {
    const line = /\bline (\d+)/.exec(problem instanceof Error ? problem.message : String(problem))?.[1]
    return line === undefined ? 'This diagram cannot be drawn: its text is not understood.' : `This diagram cannot be drawn: line ${line} is not understood.`
  } finally {
    place.remove()
  }
}

/** Where the text of a diagram gives a node a colour of its own and none for the words on it: black or white words. */
function legible(text: string): string {
  return text.replace(/^([ \t]*(?:style|classDef)[ \t]+\S+[ \t]+)([^\n;]*\bfill:[ \t]*(#[\da-f]{3,8}|[a-z]+)[^\n;]*)/gim, (line, start: string, styles: string, fill: string) =>
    /(?:^|,)\s*color:/i.test(styles) ? line : `${start}${styles.trimEnd()},color:${brightness(flat(fill, '#ffffff')) > 140 ? '#000000' : '#ffffff'}`,
  )
}

/** An SVG as a picture with its own size. */
function picture(svg: string, text: string): Drawn | string {
  // eslint-disable-next-line no-control-regex -- XML has no such characters
  const root = new DOMParser().parseFromString(svg.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, ''), 'text/html').querySelector('svg')
  const [, , width, height] = (root?.getAttribute('viewBox') ?? '').split(/[\s,]+/).map(Number)
  if (root === null || width === undefined || height === undefined || !(width > 0 && height > 0)) return 'This diagram cannot be drawn: it has no size.'
  if (width > MOST_SIDE || height > MOST_SIDE || width * height > MOST_AREA) return 'This diagram is too large to be drawn.'
  root.setAttribute('width', String(Math.ceil(width)))
  root.setAttribute('height', String(Math.ceil(height)))
  root.setAttribute('color', text)
  // Mermaid centres the text of a round node of a mind map only with HTML labels.
  for (const each of root.querySelectorAll('.mindmap-node > circle ~ .label text')) each.setAttribute('text-anchor', 'middle')
  return { address: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(root))}`, width: Math.ceil(width), height: Math.ceil(height) }
}

// --- the colours of the editor

/** A colour in six digits. Canvas reads every form, and mixes what is transparent with the ground. */
function flat(colour: string, ground = '#000000', share = 1): string {
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = 1
  const context = canvas.getContext('2d', { willReadFrequently: true })
  if (context === null) return ground
  context.fillStyle = ground
  context.fillRect(0, 0, 1, 1)
  context.globalAlpha = share
  context.fillStyle = colour
  context.fillRect(0, 0, 1, 1)
  return `#${Array.from(context.getImageData(0, 0, 1, 1).data.slice(0, 3), (each) => each.toString(16).padStart(2, '0')).join('')}`
}

/** From 0 to 255, of a colour in six digits. */
function brightness(colour: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16))
  return 0.299 * red + 0.587 * green + 0.114 * blue
}

function lookOf(): Look {
  const probe = el('span', { hidden: true })
  document.body.append(probe)
  const resolved = (value: string): string => {
    probe.style.color = ''
    probe.style.color = value
    return getComputedStyle(probe).color
  }
  const { fontFamily, fontSize } = getComputedStyle(document.body)
  const ground = flat(resolved('var(--vscode-textCodeBlock-background, transparent)'), flat(resolved('var(--ground)')))
  const text = flat(resolved('var(--vscode-foreground)'), ground)
  const contrast = document.body.matches('.vscode-high-contrast, .vscode-high-contrast-light')
  const mixed = (name: string, share: number): string => flat(resolved(`var(--vscode-${name}, var(--vscode-foreground))`), ground, share)
  const made: Look = {
    dark: brightness(ground) < 128,
    ground,
    text,
    quiet: flat(text, ground, contrast ? 1 : 0.75),
    fill: contrast ? ground : mixed('charts-blue', 0.16),
    border: contrast ? text : mixed('charts-blue', 0.7),
    raised: contrast ? ground : flat(text, ground, 0.07),
    parts: ['blue', 'green', 'orange', 'purple', 'red', 'yellow'].map((name) => mixed(`charts-${name}`, 0.35)),
    font: fontFamily,
    size: Number.parseFloat(fontSize) || 13,
  }
  probe.remove()
  return made
}

let looking = 0
new MutationObserver(() => {
  window.clearTimeout(looking)
  looking = window.setTimeout(() => {
    if (look === undefined) return
    const next = lookOf()
    if (JSON.stringify(next) === JSON.stringify(look)) return
    look = next
    drawn.clear()
    for (const each of document.querySelectorAll<HTMLElement>('.diagram')) redraws.get(each)?.()
  }, 100)
}).observe(document.documentElement, { attributes: true, subtree: true, attributeFilter: ['style', 'data-vscode-theme-id', 'data-vscode-theme-kind'] })
