//! Prints this machine's topology, and for the processes named by their numbers, what is known of
//! where they compute:
//!
//! ```text
//! cargo run -p cprt --example topology -- 4711
//! ```

use std::error::Error;

use cprt::machine::topology::{Processes, Topology};

fn main() -> Result<(), Box<dyn Error>> {
    let topology = Topology::detect()?;
    print!("{topology}");
    let processes = Processes::default();
    for pid in std::env::args().skip(1) {
        let pid = pid.parse()?;
        println!("{:#?}", processes.evidence(&topology, pid));
        match topology.process_xpu(pid, &processes) {
            Some(xpu) => println!("process {pid} works on XPU {xpu}"),
            None => println!("process {pid}: not known"),
        }
    }
    Ok(())
}
