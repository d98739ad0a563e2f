//! The modules of the core import each other in one direction: `ARCHITECTURE.md` has the levels.

use std::collections::HashMap;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// Each module may import those before it.
#[rustfmt::skip]
const ORDER: [&str; 29] = [
    "error", "dispatch", "parallel", "prefetch", "radix", "key_block", "batch", // base
    "policy", "position", "spans", "verdict", "dictionary", "keys", "order", "holes", "repeats", // values
    "judge", "fast_path", "union", "changes", // rules
    "lines", "slab", // memory
    "shelf", "store", "ordered", // entries by key
    "table", "broker", "transactions", "snapshot", // tables
];

#[test]
fn modules_import_only_those_below_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rank: HashMap<_, _> = (0..).zip(ORDER).map(|(rank, module)| (module, rank)).collect();
    let library = read_to_string(source.join("lib.rs")).expect("the library");
    let exports = exports(&library);
    let mut imports = 0;
    for file in files(&source) {
        let module = module_of(file.strip_prefix(&source).expect("a file of the library"));
        let text = read_to_string(&file).expect("a file of the library");
        let code = text.split("#[cfg(test)]\nmod tests {").next().expect("a first part");
        for name in imported(code) {
            let from = exports.get(name.as_str()).unwrap_or(&name);
            let known = rank.get(from.as_str()).unwrap_or_else(|| panic!("{from} is in no level of ORDER"));
            let is_below = *from == module || *known < rank[module.as_str()];
            assert!(is_below, "{} imports {from}, which is not below {module}", file.display());
            imports += 1;
        }
    }
    assert!(imports > 100, "{imports}");
}

/// The files of the library except `lib.rs`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    paths
        .flat_map(below)
        .filter(|path| path.extension().is_some_and(|it| it == "rs") && !path.ends_with("lib.rs"))
        .collect()
}

/// The module of the crate that a file is part of.
fn module_of(path: &Path) -> String {
    let first = path.components().next().expect("a name").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").into()
}

/// What the library exports, each with its module.
fn exports(library: &str) -> HashMap<String, String> {
    let mut exports = HashMap::new();
    for export in library.split("pub use ").skip(1) {
        let (module, names) = export.split_once(';').and_then(|(it, _)| it.split_once("::")).expect("a path");
        exports.extend(words(names).map(|name| (name, module.to_string())));
    }
    exports
}

/// The first names after `crate::`.
fn imported(code: &str) -> Vec<String> {
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let after = code.split("crate::").skip(1);
    let names = |after: &str| match after.strip_prefix('{') {
        Some(list) => words(list.split('}').next().expect("a list")).collect(),
        None => words(after).take(1).collect::<Vec<_>>(),
    };
    after.flat_map(names).collect()
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|it: char| !it.is_alphanumeric() && it != '_').filter(|it| !it.is_empty()).map(String::from)
}
