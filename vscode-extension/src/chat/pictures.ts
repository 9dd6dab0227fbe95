/** Pictures of the workspace that an answer shows. Uses no editor. */
import { open, realpath } from "node:fs/promises";
import { constants } from "node:fs";
import { isAbsolute, relative, resolve, sep } from "node:path";

const MOST_BYTES = 5_000_000;
// Windows has neither.
const { O_NONBLOCK = 0, O_NOFOLLOW = 0 } = constants as Partial<typeof constants>;
/** A pipe would wait for its other end, and the last part must not have become a link meanwhile. */
const FLAGS = O_NONBLOCK | O_NOFOLLOW;
/** The page shows them as data in an `img`, in which nothing of an SVG runs or loads. */
const TYPES: Readonly<Record<string, string>> = {
  ".png": "image/png",
  ".jpg": "image/jpeg",
  ".jpeg": "image/jpeg",
  ".gif": "image/gif",
  ".webp": "image/webp",
  ".avif": "image/avif",
  ".bmp": "image/bmp",
  ".svg": "image/svg+xml",
};

/** Whether a path lies in a folder. */
export function isInside(path: string, folder: string): boolean {
  const way = relative(folder, path);
  return way !== "" && way !== ".." && !way.startsWith(`..${sep}`) && !isAbsolute(way);
}

/** The real path of a file that lies inside one of the folders, after all links; undefined if it does not. */
export async function fileInside(path: string, folders: readonly string[]): Promise<string | undefined> {
  try {
    const real = await realpath(path);
    const roots = await Promise.all(folders.map((folder) => realpath(folder)));
    return roots.some((root) => isInside(real, root)) ? real : undefined;
  } catch {
    return undefined;
  }
}

/**
 * A picture as a `data:` address, if it is a file of a known type inside one of the folders. `href` is untrusted: it comes from
 * the Markdown of an answer. Relative paths begin at `folder`.
 */
export async function pictureData(href: string, folder: string, folders: readonly string[]): Promise<string | undefined> {
  if (/^[A-Za-z][A-Za-z0-9+.-]*:|^\/\/|^\\|\0/.test(href)) return undefined;
  let path: string;
  try {
    path = decodeURIComponent(href.replace(/[?#].*$/s, ""));
  } catch {
    return undefined;
  }
  const real = path === "" || path.includes("\0") ? undefined : await fileInside(resolve(folder, path), folders);
  const type = real === undefined ? undefined : TYPES[/\.\w+$/.exec(real)?.[0].toLowerCase() ?? ""];
  if (real === undefined || type === undefined) return undefined;
  try {
    const file = await open(real, constants.O_RDONLY | FLAGS);
    try {
      const about = await file.stat();
      if (!about.isFile() || about.size > MOST_BYTES) return undefined;
      return `data:${type};base64,${(await file.readFile()).toString("base64")}`;
    } finally {
      await file.close();
    }
  } catch {
    return undefined;
  }
}
