//! What the files of the core import, read as text.

pub(super) const CORE: &str = "lock-core/src/";

/// The words between the `::` of a path, from the root of the crate.
pub(super) type Module<'a> = Vec<&'a str>;

/// Returns the module in `path`, which begins below [`CORE`].
pub(super) fn module_of(path: &str) -> Module<'_> {
    let mut words: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
    words.pop_if(|word| matches!(*word, "mod" | "lib"));
    words
}

/// Returns what `code`, the code of a module, names from the root of the crate or from a parent, with the line.
pub(super) fn imports<'a>(module: &[&'a str], code: &'a str) -> Vec<(usize, Module<'a>)> {
    let mut found = Vec::new();
    let mut add = |at: usize, from: &[&'a str], tree: &'a str| {
        let line = code[..at].lines().count().max(1);
        found.extend(paths(from, tree).into_iter().map(|path| (line, path)));
    };
    for (at, root) in code.match_indices("crate::") {
        add(at, &[], &code[at + root.len()..]);
    }
    let parents = code.match_indices("super::").filter(|(at, word)| !code[..*at].ends_with(word));
    for (at, word) in parents {
        let rest = code[at..].trim_start_matches(word);
        let above = (code.len() - at - rest.len()) / word.len();
        add(at, &module[..module.len().saturating_sub(above)], rest);
    }
    found
}

/// Returns the paths of a `use` tree, or the path of an expression, that begins with `prefix`.
pub(super) fn paths<'a>(prefix: &[&'a str], tree: &'a str) -> Vec<Module<'a>> {
    let (mut open, mut path, mut found) = (Vec::new(), prefix.to_vec(), Vec::new());
    let mut rest = tree;
    loop {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        path.extend((end > 0).then_some(&rest[..end]));
        let mut letters = rest[end..].chars();
        match letters.next() {
            Some('{') => open.push(path.clone()),
            Some(':') if letters.as_str().starts_with(':') => drop(letters.next()),
            Some(end @ (',' | '}')) if !open.is_empty() => {
                found.push(std::mem::take(&mut path));
                if end == '}' {
                    open.pop();
                } else {
                    path.extend(open.last().into_iter().flatten());
                }
            }
            Some(_) if !open.is_empty() => {}
            _ => {
                found.push(path);
                found.retain(|path| path.len() > prefix.len());
                return found;
            }
        }
        rest = letters.as_str();
    }
}

/// Returns the code without comments, which leave empty lines behind.
pub(super) fn without_comments(text: &str) -> String {
    let code = |line| if str::trim_start(line).starts_with("//") { "" } else { line };
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// Returns the code that is compiled into the library: without comments, tests, and imports for the docs alone.
pub(super) fn product(text: &str) -> String {
    let code = without_comments(text);
    let (mut kept, mut lines) = (Vec::new(), code.lines());
    while let Some(line) = lines.next() {
        if !matches!(line.trim_start(), "#[cfg(test)]" | "#[cfg(doc)]") {
            kept.push(line);
        } else if lines.next().is_some_and(|first| first.ends_with('{')) {
            // The item behind the attribute ends with a brace below its beginning, or else with that line.
            let end = line.replace(line.trim_start(), "}");
            lines.by_ref().find(|line| line.trim_end_matches(';') == end);
        }
    }
    kept.join("\n")
}
