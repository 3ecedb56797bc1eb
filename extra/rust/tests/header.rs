//! src/sys.rs says what the headers say: a C program of assertions is made of its text, and compiled.
use hugepin::sys;
use std::io::Write;
use std::mem::size_of;
use std::process::{Command, Stdio};

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*mut ") {
        return c_type(to) + " *";
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type(to));
    }
    match rust {
        "usize" => "size_t".into(),
        "u64" => "uint64_t".into(),
        "u32" => "uint32_t".into(),
        "u8" => "uint8_t".into(),
        "i32" | "c_int" => "int".into(),
        "c_void" => "void".into(),
        name => format!("struct {name}"),
    }
}

/// The member of a struct in C, of "name: type".
fn c_member(member: &str) -> (String, String) {
    let (name, rust) = member.trim().trim_start_matches("pub ").split_once(": ").unwrap();
    let name = name.trim_start_matches("r#").to_string();
    match rust.trim_start_matches('[').trim_end_matches(']').split_once("; ") {
        Some((of, n)) => (format!("{} {name}[{n}];", c_type(of)), name),
        None => (format!("{} {name};", c_type(rust)), name),
    }
}

fn c_struct(name: &str, members: impl Iterator<Item = String>) -> String {
    let members: Vec<_> = members.map(|m| c_member(&m)).collect();
    let mut c = format!("struct rust_{name} {{ ");
    members.iter().for_each(|(member, _)| c += member);
    c += &format!(" }};\n_Static_assert(sizeof(struct rust_{name}) == sizeof(struct {name}), \"\");\n");
    for (_, m) in members {
        c += &format!("_Static_assert(offsetof(struct rust_{name}, {m}) == offsetof(struct {name}, {m}), \"\");\n");
        c += &format!(
            "_Static_assert(sizeof ((struct rust_{name} *)0)->{m} == sizeof ((struct {name} *)0)->{m}, \"\");\n"
        );
    }
    c
}

#[test]
fn declarations_agree_with_the_headers() {
    let text = include_str!("../src/sys.rs");
    let lines: Vec<_> = text.lines().map(|l| l.split("//").next().unwrap()).collect();
    let text = lines.join("\n");
    let mut c = String::from("#include <errno.h>\n#include <hugepin_uring.h>\n");

    for line in lines.iter().filter_map(|l| l.strip_prefix("pub const ")) {
        let (name, value) = line.trim_end_matches(';').split_once(": ").unwrap();
        let value = value.split_once(" = ").unwrap().1;
        c += &format!("_Static_assert({name} == {value}, \"\");\n");
    }
    for part in text.split("\npub struct ").skip(1) {
        let (name, members) = part.split_once(" {\n").unwrap();
        let members = members.split_once("\n}").unwrap().0;
        c += &c_struct(name, members.split_terminator(',').map(String::from));
    }
    for part in text.split("\ncounters! { ").skip(1) {
        let (name, members) = part.split_once(": ").unwrap();
        let members = members.split_once("\n}").unwrap().0.split_whitespace();
        c += &c_struct(name, ["version"].into_iter().chain(members).map(|m| format!("{m}: u64")));
    }
    for function in text.split("extern \"C\" {").nth(1).unwrap().split("pub fn ").skip(1) {
        let (name, rest) = function.split_once('(').unwrap();
        let (arguments, rest) = rest.split_once(')').unwrap();
        let returned = rest.split(';').next().unwrap().trim().strip_prefix("-> ").map_or("void".into(), c_type);
        let types: Vec<_> = arguments.split(", ").flat_map(|a| a.split(",\n")).filter(|a| !a.is_empty()).collect();
        let types: Vec<_> = types.iter().map(|a| c_type(a.split_once(": ").unwrap().1)).collect();
        let types = if types.is_empty() { "void".into() } else { types.join(", ") };
        c += &format!(
            "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {returned}({types})), \"{name}\");\n"
        );
    }
    // What the compilers make of it.
    for (name, size) in [
        ("hugepin_pin", size_of::<sys::hugepin_pin>()),
        ("hugepin_extent", size_of::<sys::hugepin_extent>()),
        ("hugepin_stats", size_of::<sys::hugepin_stats>()),
        ("hugepin_domain_stats", size_of::<sys::hugepin_domain_stats>()),
    ] {
        assert!(c.contains(&format!("struct rust_{name} ")), "{name} was not found");
        c += &format!("_Static_assert(sizeof(struct {name}) == {size}, \"\");\n");
    }
    assert!(c.matches("types_compatible").count() >= 10 && c.matches("_Static_assert").count() > 200);

    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    let mut cc = cc.split_whitespace();
    let mut compiler = Command::new(cc.next().unwrap())
        .args(cc)
        .args(["-D_GNU_SOURCE", "-Wall", "-Werror", "-fsyntax-only", include, "-xc", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(c.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "of these one is not so:\n{c}");
}
