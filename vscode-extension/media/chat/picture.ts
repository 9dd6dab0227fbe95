/** Pictures of the workspace in Markdown. The extension host gives them, if they are inside the workspace; all others stay links. */
import { host } from './host'
import { el, icon } from './dom'
import { Cache, keepingPlace, whenSeen } from './seen'

/** The time in ms for which a picture counts as unchanged. */
const FRESH_MS = 10_000

const kept = new Cache<{ readonly data: string | undefined; readonly at: number }>(20)
const asked = new Map<number, (data: string | undefined) => void>()
let asks = 0

/** The content of a link to a picture: the picture, once it is there. */
export function picture(href: string, alt: string): HTMLElement {
  const element = el('span', { class: 'picture' }, icon('file-media'), ` ${alt || href}`)
  // Remote pictures would tell who looks at them.
  if (/^(?:[A-Za-z][A-Za-z0-9+.-]*:|\/\/)/.test(href)) return element
  const name = `${document.body.dataset['session'] ?? ''} ${href}`
  const put = (data: string | undefined): void => {
    if (data === undefined) return
    const made = el('img', { alt: alt || href, decoding: 'sync' })
    // Without its size the place of what follows would jump.
    made.addEventListener('load', () => { keepingPlace(element, () => { element.replaceChildren(made) }) })
    made.src = data
  }
  const known = kept.get(name)
  if (known !== undefined && performance.now() - known.at < FRESH_MS) put(known.data)
  else {
    whenSeen(element, () => {
      asks += 1
      asked.set(asks, (data) => {
        kept.set(name, { data, at: performance.now() })
        put(data)
      })
      host.postMessage({ type: 'picture', ask: asks, href })
    })
  }
  return element
}

/** The answer to a request for a picture. */
export function pictureFound(ask: number, data: string | undefined): void {
  asked.get(ask)?.(data?.startsWith('data:image/') === true ? data : undefined)
  asked.delete(ask)
}
