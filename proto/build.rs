//! Compiles the schema with protox, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = protox::compile(["schema/tidefs.proto"], ["schema"])?;
    println!("cargo:rerun-if-changed=schema");
    tonic_prost_build::configure().bytes(".").compile_fds(schema)?;
    Ok(())
}
