/** Work for what is seen alone, in small pieces, so that the page stays fluid however much an answer asks for. */
const SLICE_MS = 8

type Work = () => void | Promise<void>

const waiting = new WeakMap<Element, Work>()
let queue: Work[] = []
let busy = false

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const work = waiting.get(target)
    if (!isIntersecting || work === undefined) continue
    waiting.delete(target)
    observer.unobserve(target)
    queue.push(work)
  }
  if (!busy) void run()
})

/** Do something once the element is seen. */
export function whenSeen(element: Element, work: Work): void {
  waiting.set(element, work)
  observer.observe(element)
}

async function run(): Promise<void> {
  busy = true
  while (queue.length > 0) {
    const begun = performance.now()
    while (queue.length > 0 && performance.now() - begun < SLICE_MS) await queue.shift()?.()
    await new Promise((then) => setTimeout(then))
  }
  queue = []
  busy = false
}

/** Change something in the conversation. If it begins above what is seen, what is seen stays in its place. */
export function keepingPlace(element: HTMLElement, change: () => void): void {
  const log = element.closest('.log')
  const above = log !== null && element.getBoundingClientRect().top < log.getBoundingClientRect().top
  const before = element.offsetHeight
  change()
  if (above) log.scrollTop += element.offsetHeight - before
}

/** The last things that were made, by name. */
export class Cache<T> {
  private readonly kept = new Map<string, T>()

  constructor(private readonly most: number) {}

  get(name: string): T | undefined {
    const found = this.kept.get(name)
    if (found === undefined) return undefined
    this.kept.delete(name)
    this.kept.set(name, found)
    return found
  }

  set(name: string, value: T): void {
    this.kept.delete(name)
    this.kept.set(name, value)
    if (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value as string)
  }

  delete(name: string): void {
    this.kept.delete(name)
  }

  clear(): void {
    this.kept.clear()
  }
}
