//! NVIDIA's libraries, loaded at run time: CUDA numbers the GPUs, NVML knows which process computes on
//! which. Without one of them, or without a driver behind it, the answer is an empty list.
//!
//! This is one of the modules with unsafe code: both are C libraries.
#![allow(unsafe_code, reason = "calls into C libraries")]

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUdevice_attribute};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_SUCCESS,
};

use super::{Compute, PciAddress};

/// A GPU as CUDA reports it.
pub(super) struct CudaDevice {
    /// Its number.
    pub(super) ordinal: u16,
    /// Its PCI address.
    pub(super) pci: PciAddress,
    /// Its UUID, beginning with `GPU-`.
    pub(super) uuid: Option<String>,
}

/// The GPUs that CUDA shows this process, in its order. CUDA never updates the list, and its state does not
/// survive a fork.
pub(super) fn cuda_devices() -> Vec<CudaDevice> {
    // Without CUDA's library, cudarc would panic at the first call.
    // SAFETY: loading the driver's library runs nothing but its own initialisers.
    if !unsafe { sys::is_culib_present() } || result::init().is_err() {
        return Vec::new();
    }
    let count = device::get_count().unwrap_or(0);
    (0..count).filter_map(cuda_device).collect()
}

fn cuda_device(ordinal: i32) -> Option<CudaDevice> {
    let device = device::get(ordinal).ok()?;
    let attribute = |which| {
        // SAFETY: device::get has just handed out the device.
        unsafe { device::get_attribute(device, which) }.ok()
    };
    let pci = PciAddress {
        domain: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?
            .try_into()
            .ok()?,
        bus: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?
            .try_into()
            .ok()?,
        device: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?
            .try_into()
            .ok()?,
        function: 0,
    };
    let uuid = device::get_uuid(device).ok().map(|uuid| {
        // The type of a C char depends on the machine.
        #[allow(
            clippy::unnecessary_cast,
            clippy::cast_sign_loss,
            reason = "c_char is i8 or u8"
        )]
        let bytes = uuid.bytes.map(|byte| byte as u8);
        spell(bytes)
    });
    Some(CudaDevice {
        ordinal: ordinal.try_into().ok()?,
        pci,
        uuid,
    })
}

/// Writes a UUID as in `CUDA_VISIBLE_DEVICES`.
pub(super) fn spell(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]);
    format!("GPU-{}", parts.join("-"))
}

/// Every process that has memory on an NVIDIA GPU. NVML is loaded for this and unloaded again, as it
/// takes more memory than a worker.
#[must_use]
pub fn compute_processes() -> Vec<Compute> {
    // SAFETY: loading the driver's library runs nothing but its own initialisers.
    let Ok(nvml) = (unsafe { NvmlLib::new("libnvidia-ml.so.1") }) else {
        return Vec::new();
    };
    ask(&nvml).unwrap_or_default()
}

/// `None` if the library lacks a function that is needed, or has no driver. Functions are called through their
/// symbols, because the crate's methods panic if one is missing.
fn ask(nvml: &NvmlLib) -> Option<Vec<Compute>> {
    let init = nvml.nvmlInit_v2.as_ref().ok()?;
    let shutdown = nvml.nvmlShutdown.as_ref().ok()?;
    let count = nvml.nvmlDeviceGetCount_v2.as_ref().ok()?;
    let by_index = nvml.nvmlDeviceGetHandleByIndex_v2.as_ref().ok()?;
    // SAFETY: takes nothing; shutdown below is its counterpart.
    if unsafe { init() } != nvmlReturn_enum_NVML_SUCCESS {
        return None;
    }
    let mut devices = 0;
    // SAFETY: NVML is initialised; the pointer is to a u32 that outlives the call.
    let returned = unsafe { count(&raw mut devices) };
    if returned != nvmlReturn_enum_NVML_SUCCESS {
        devices = 0;
    }
    let mut computes = Vec::new();
    for index in 0..devices {
        let mut device: nvmlDevice_t = std::ptr::null_mut();
        // SAFETY: NVML is initialised; the pointer is to a handle that outlives the call.
        if unsafe { by_index(index, &raw mut device) } == nvmlReturn_enum_NVML_SUCCESS {
            computes.extend(ask_device(nvml, device).unwrap_or_default());
        }
    }
    // SAFETY: NVML is initialised, and its handles are no longer used.
    unsafe { shutdown() };
    Some(computes)
}

/// The processes on a device. NVML must be initialised, and have handed out the device.
fn ask_device(nvml: &NvmlLib, device: nvmlDevice_t) -> Option<Vec<Compute>> {
    let address = nvml.nvmlDeviceGetPciInfo_v3.as_ref().ok()?;
    let running = nvml.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().ok()?;
    // SAFETY: the structure is of numbers and of arrays of them, for which 0 is a value.
    let mut place = unsafe { std::mem::zeroed() };
    // SAFETY: the handle is NVML's, by the contract above; the structure outlives the call.
    if unsafe { address(device, &raw mut place) } != nvmlReturn_enum_NVML_SUCCESS {
        return None;
    }
    let pci = PciAddress {
        domain: place.domain,
        bus: place.bus.try_into().ok()?,
        device: place.device.try_into().ok()?,
        function: 0,
    };
    // Processes come and go between the count and the list, so there is room for more.
    let mut list: Vec<nvmlProcessInfo_t> = Vec::new();
    for room in [64_u32, 1024, 16384] {
        let mut told = room;
        // SAFETY: as above, 0 is a value of every member.
        list.resize(room as usize, unsafe { std::mem::zeroed() });
        // SAFETY: the handle is NVML's; the list has as many entries as `told` says.
        match unsafe { running(device, &raw mut told, list.as_mut_ptr()) } {
            returned if returned == nvmlReturn_enum_NVML_SUCCESS => {
                list.truncate(told as usize);
                let pids = list.iter().map(|process| process.pid);
                return Some(pids.map(|pid| Compute { pid, pci }).collect());
            }
            returned if returned == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE => {}
            _ => return None,
        }
    }
    None
}
