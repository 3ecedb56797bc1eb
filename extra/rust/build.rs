//! Where libhugepin is: in HUGEPIN_X_LIB_DIR, or where pkg-config says.
use std::{env, path::Path, process};

fn main() {
    for name in ["HUGEPIN_X_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let flags = match env::var("HUGEPIN_X_LIB_DIR") {
        Ok(dir) if !["so", "a"].iter().any(|end| Path::new(&dir).join(format!("libhugepin.{end}")).exists()) => {
            eprintln!("no libhugepin in {dir}, which HUGEPIN_X_LIB_DIR names");
            process::exit(1);
        }
        Ok(dir) => format!("-L{dir} -lhugepin -Wl,-rpath,{dir}"),
        Err(_) => ask_pkg_config().unwrap_or_else(|why| {
            eprintln!("no libhugepin: install libhugepin-dev, or name its directory in HUGEPIN_X_LIB_DIR\n{why}");
            process::exit(1);
        }),
    };
    for flag in flags.split_whitespace() {
        match (flag.get(..2), flag.get(2..)) {
            (Some("-L"), Some(dir)) => println!("cargo:rustc-link-search=native={dir}"),
            (Some("-l"), Some(name)) => println!("cargo:rustc-link-lib={name}"),
            // Cargo uses this for the tests of this crate, not for the programs that depend on it.
            _ => println!("cargo:rustc-link-arg={flag}"),
        }
    }
}

fn ask_pkg_config() -> Result<String, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let told = process::Command::new(&program).args(["--libs", "hugepin"]).output();
    let told = told.map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    told.status.success().then(|| text(&told.stdout)).ok_or_else(|| text(&told.stderr))
}
