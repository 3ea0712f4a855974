//! A recorded page as files, from which a browser can load the page again.
//!
//! Documents contain the objects that their parser found, in order and evenly distributed, with leading style
//! sheets and scripts in the head. Scripts compute, and then load the objects that they loaded in the
//! recording. The children of other objects are loaded when their parent has arrived. Objects are padded to
//! their recorded size; an object is longer only if its content does not fit.

use std::fmt::Write;

use crate::pages::outline::{Kind, Outline};

/// The server's answer to `GET /N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) content_type: &'static str,
    pub(super) location: Option<String>,
    /// Length of the whole head, bytes.
    pub(super) head: u32,
    pub(super) body: Vec<u8>,
}

/// A page as files, one per object.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) answers: Vec<Answer>,
    pub(super) hosts: usize,
}

/// The smallest image: one grey pixel (GIF89a). Browsers ignore bytes after its end.
const PIXEL: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x99\xaa\xbb\xff\xff\xff\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00\x3b";

/// Script in every document. `k` loads objects and then their children; `w` computes.
const PRELUDE: &str = "<script>function k(l){for(const [t,u,c] of l){let e;\
if(t=='s'){e=document.createElement('script');e.src=u}\
else if(t=='c'){e=document.createElement('link');e.rel='stylesheet';e.href=u}\
else if(t=='d'){e=document.createElement('iframe');e.src=u}\
else{e=new Image(24,18);e.src=u}\
if(c)e.onload=e.onerror=()=>k(c);(document.body||document.head).append(e)}}\
function w(t){t+=performance.now();while(performance.now()<t);}</script>";

impl Site {
    pub(super) fn of(outline: &Outline) -> Site {
        let tree = Tree { outline };
        let answers = (0..outline.objects.len()).map(|index| tree.answer(index)).collect();
        Site { answers, hosts: outline.hosts() }
    }

    /// Returns the URL of an object, without a scheme.
    pub(super) fn url(host: usize, index: usize) -> String {
        format!("//{}/{index}", host_name(host))
    }
}

/// Returns the name of a host, which the browser's rules map to an address.
pub(super) fn host_name(host: usize) -> String {
    format!("h{host}.test")
}

struct Tree<'a> {
    outline: &'a Outline,
}

impl Tree<'_> {
    /// Returns the objects that an object loads: its children, and the children of objects that redirect to
    /// it.
    fn children(&self, index: usize) -> Vec<usize> {
        let objects = &self.outline.objects;
        let mut parents = vec![index];
        let mut at = index;
        while let Some(parent) = objects[at].parent.filter(|parent| self.target(*parent) == Some(at)) {
            parents.push(parent);
            at = parent;
        }
        let brought = |child: &usize| {
            let parent = objects[*child].parent;
            parent.is_some_and(|parent| parents.contains(&parent) && self.target(parent) != Some(*child))
        };
        (0..objects.len()).filter(brought).collect()
    }

    /// Returns the target of the object's redirect.
    fn target(&self, index: usize) -> Option<usize> {
        self.outline.objects.iter().position(|object| object.redirected && object.parent == Some(index))
    }

    fn final_target(&self, index: usize) -> usize {
        let mut at = index;
        while let Some(next) = self.target(at) {
            at = next;
        }
        at
    }

    fn url(&self, index: usize) -> String {
        Site::url(self.outline.objects[index].host, index)
    }

    fn kind(&self, index: usize) -> Kind {
        match index {
            0 => Kind::Document,
            _ => self.outline.objects[self.final_target(index)].kind,
        }
    }

    fn answer(&self, index: usize) -> Answer {
        let object = &self.outline.objects[index];
        let size = usize::try_from(object.body).unwrap_or(usize::MAX);
        let redirect = self.target(index).map(|target| self.url(target));
        let (content_type, body) = match self.own_kind(index) {
            _ if redirect.is_some() => ("text/plain", vec![b' '; size]),
            Kind::Document => ("text/html", self.document(index, size)),
            Kind::Script => ("text/javascript", padded(self.script(index), "/*", b'-', "*/", size)),
            Kind::Style => ("text/css", padded(String::new(), "/*", b'-', "*/", size)),
            Kind::Image => ("image/gif", image(size)),
        };
        Answer { content_type, location: redirect, head: object.head, body }
    }

    /// Returns the kind of the object itself, not of its target; the page is always a document.
    fn own_kind(&self, index: usize) -> Kind {
        if self.final_target(0) == index { Kind::Document } else { self.outline.objects[index].kind }
    }

    fn script(&self, index: usize) -> String {
        let object = &self.outline.objects[index];
        let mut text = String::new();
        if !object.compute.is_zero() {
            let _ = write!(text, "w({});", object.compute.as_micros() as f64 / 1000.0);
        }
        let children = self.children(index);
        if !children.is_empty() {
            let _ = write!(text, "k({});", self.list(&children));
        }
        text
    }

    /// Returns children as the argument of the script function `k`.
    fn list(&self, children: &[usize]) -> String {
        let item = |index: &usize| {
            let (kind, url) = (self.kind(*index), self.url(*index));
            let letter = match kind {
                Kind::Document => 'd',
                Kind::Script => 's',
                Kind::Style => 'c',
                Kind::Image => 'i',
            };
            match self.after(*index) {
                Some(list) => format!("['{letter}','{url}',{list}]"),
                None => format!("['{letter}','{url}']"),
            }
        };
        format!("[{}]", children.iter().map(item).collect::<Vec<_>>().join(","))
    }

    /// Returns the children that load once the element of the object has loaded, as the argument of `k`.
    /// `None` for documents and scripts, because their content loads the children.
    fn after(&self, index: usize) -> Option<String> {
        let children = self.children(self.final_target(index));
        let itself = matches!(self.kind(index), Kind::Document | Kind::Script);
        (!itself && !children.is_empty()).then(|| self.list(&children))
    }

    /// Returns a child as an element of its parent document.
    fn element(&self, index: usize) -> String {
        let url = self.url(index);
        let then = self.after(index).map(|list| format!(" onload=\"k({list})\"")).unwrap_or_default();
        match self.kind(index) {
            Kind::Document => format!("<iframe src={url} width=90 height=60></iframe>"),
            Kind::Script => format!("<script src={url}></script>"),
            Kind::Style => format!("<link rel=stylesheet href={url}{then}>"),
            Kind::Image => format!("<img src={url} width=24 height=18{then}>"),
        }
    }

    fn document(&self, index: usize, size: usize) -> Vec<u8> {
        let children = self.children(index);
        let in_head = |child: &&usize| matches!(self.kind(**child), Kind::Style | Kind::Script);
        let head = children.iter().take_while(in_head).count();
        let title: String = self
            .outline
            .label
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | ' '))
            .collect();
        let mut pieces = vec![format!("<!doctype html><meta charset=utf-8><title>{title}</title>{PRELUDE}")];
        pieces.extend(children[..head].iter().map(|child| self.element(*child)));
        pieces.push(format!("<body><h1>{title}</h1>"));
        pieces.extend(children[head..].iter().map(|child| self.element(*child)));
        spread(&pieces, size)
    }
}

/// Joins the pieces of a document, with comments between them that extend it evenly to `size` bytes.
fn spread(pieces: &[String], size: usize) -> Vec<u8> {
    let contained: usize = pieces.iter().map(String::len).sum();
    let filler = size.saturating_sub(contained);
    let mut body = Vec::with_capacity(size.max(contained));
    for (nth, piece) in pieces.iter().enumerate() {
        body.extend_from_slice(piece.as_bytes());
        // Length of the body after this piece and its comment. A gap that is too short for a comment stays.
        let due = contained_until(pieces, nth) + filler * (nth + 1) / pieces.len();
        if let Some(missing) = due.checked_sub(body.len() + "<!---->".len()) {
            body.extend_from_slice(b"<!--");
            body.extend(std::iter::repeat_n(b'.', missing));
            body.extend_from_slice(b"-->");
        }
    }
    body.extend(std::iter::repeat_n(b'\n', size.saturating_sub(body.len())));
    body
}

fn contained_until(pieces: &[String], nth: usize) -> usize {
    pieces[..=nth].iter().map(String::len).sum()
}

/// Returns `text` with a comment that extends it to `size` bytes.
fn padded(text: String, open: &str, fill: u8, close: &str, size: usize) -> Vec<u8> {
    let mut body = text.into_bytes();
    if let Some(missing) = size.checked_sub(body.len() + open.len() + close.len()) {
        body.extend_from_slice(open.as_bytes());
        body.extend(std::iter::repeat_n(fill, missing));
        body.extend_from_slice(close.as_bytes());
    }
    body.extend(std::iter::repeat_n(b'\n', size.saturating_sub(body.len())));
    body
}

fn image(size: usize) -> Vec<u8> {
    let mut body = PIXEL.to_vec();
    body.resize(size.max(PIXEL.len()), 0);
    body
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pages::outline::Object;

    fn text(site: &Site, index: usize) -> String {
        String::from_utf8(site.answers[index].body.clone()).unwrap()
    }

    #[test]
    fn files_have_the_sizes_of_the_outline_and_load_each_other() {
        let line = r#"{"label":"a<b","res":[
            [0,"html",-1,"nav",0,300,200,9000,200,0,50],
            [0,"css",0,"parser",10,null,100,500,200,0,50],
            [1,"js",0,"parser",10,null,100,5000,200,0,50],
            [1,"img",1,"parser",11,250,100,400,200,1,50],
            [2,"other",0,"parser",11,250,90,0,302,1,50],
            [2,"html",4,"redirect",11,250,100,3000,200,1,50],
            [2,"img",5,"parser",11,250,100,2,200,1,50],
            [1,"xhr",2,"script",90,250,100,4000,200,1,50]]}"#;
        let outline = crate::pages::outlines(&line.replace('\n', " "), "x").unwrap().remove(0);
        let site = Site::of(&outline);
        let sizes: Vec<usize> = site.answers.iter().map(|answer| answer.body.len()).collect();
        assert_eq!(sizes, [9000, 500, 5000, 400, 0, 3000, PIXEL.len(), 4000]);
        assert_eq!(site.hosts, 3);
        let page = text(&site, 0);
        assert!(page.contains("<title>ab</title>"));
        let css = "<link rel=stylesheet href=//h0.test/1 onload=\"k([['i','//h1.test/3']])\">";
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} is not in {page}"));
        assert!(at(css) < at("<script src=//h1.test/2>") && at("<script src") < at("<h1>"));
        let frame = at("<iframe src=//h2.test/4");
        assert!((3600..8000).contains(&frame), "{frame}: spread over the document");
        assert_eq!(site.answers[4].location.as_deref(), Some("//h2.test/5"));
        assert!(text(&site, 5).contains("<img src=//h2.test/6 "), "the target loads its own children");
        assert!(text(&site, 2).starts_with("k([['i','//h1.test/7']]);/*---"));
    }

    #[test]
    fn script_computes_before_it_loads_objects() {
        let object = |kind, parent, ms| Object {
            host: 0,
            kind,
            parent,
            redirected: false,
            head: 0,
            body: 100,
            compute: Duration::from_millis(ms),
        };
        let objects = vec![
            object(Kind::Document, None, 0),
            object(Kind::Script, Some(0), 7),
            object(Kind::Image, Some(1), 0),
        ];
        let site = Site::of(&Outline { label: "x".to_owned(), objects });
        assert!(text(&site, 1).starts_with("w(7);k([['i','//h0.test/2']]);"));
    }
}
