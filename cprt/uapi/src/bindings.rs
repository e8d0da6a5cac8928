// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT
// Generated from kmod/include/uapi/linux/rfs.h by cprt/uapi/bindgen.sh; edit those, not this.

pub const RFS_VERSION_MAJOR: u32 = 1;
pub const RFS_VERSION_MINOR: u32 = 0;
pub const RFS_SUPER_MAGIC: u32 = 1919316845;
pub const RFS_EVENT_LOST: u32 = 0;
pub const RFS_EVENT_OPEN: u32 = 1;
pub const RFS_EVENT_CLOSE: u32 = 2;
pub const RFS_EVENT_MISS: u32 = 3;
pub const RFS_EVENT_TOUCH: u32 = 4;
pub const RFS_EVENT_PROGRESS: u32 = 5;
pub const __RFS_EVENT_MAX: u32 = 6;
pub const RFS_EV_MMAP: u32 = 1;
pub const RFS_EV_DIRECT: u32 = 2;
pub const RFS_EVENT_VERSION: u32 = 1;
pub const RFS_FEATURE_CHARGE: u32 = 1;
pub const RFS_FEATURE_LARGE: u32 = 2;
pub const RFS_FEATURE_EVICT_MAPPED: u32 = 4;
pub const RFS_LOAD_WAIT: u32 = 1;
pub const RFS_LOAD_CHARGE: u32 = 2;
pub const RFS_LOAD_LARGE: u32 = 4;
pub const RFS_LOAD_STOPPED: u32 = 2147483648;
pub const RFS_EVICT_UNMAPPED: u32 = 1;
pub const RFS_IOC_MAGIC: u32 = 191;
pub type __u8 = ::std::os::raw::c_uchar;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __s32 = ::std::os::raw::c_int;
pub type __u32 = ::std::os::raw::c_uint;
pub type __u64 = ::std::os::raw::c_ulonglong;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_event {
    pub len: __u16,
    pub version: __u8,
    pub kind: __u8,
    pub flags: __u32,
    pub file: __u64,
    pub offset: __u64,
    pub length: __u64,
    pub time_ns: __u64,
    pub count: __u64,
    pub tgid: __u32,
    pub tid: __u32,
    pub cpu: __u32,
    pub reserved: __u32,
}
#[test]
fn bindgen_test_layout_rfs_event() {
    assert_eq!(
        ::std::mem::size_of::<rfs_event>(),
        64usize,
        concat!("Size of: ", stringify!(rfs_event))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_event>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_event))
    );
    fn test_field_len() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).len) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(len)
            )
        );
    }
    test_field_len();
    fn test_field_version() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).version) as usize - ptr as usize
            },
            2usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(version)
            )
        );
    }
    test_field_version();
    fn test_field_kind() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).kind) as usize - ptr as usize
            },
            3usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(kind)
            )
        );
    }
    test_field_kind();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_offset() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).offset) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(offset)
            )
        );
    }
    test_field_offset();
    fn test_field_length() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).length) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(length)
            )
        );
    }
    test_field_length();
    fn test_field_time_ns() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).time_ns) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(time_ns)
            )
        );
    }
    test_field_time_ns();
    fn test_field_count() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).count) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(count)
            )
        );
    }
    test_field_count();
    fn test_field_tgid() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).tgid) as usize - ptr as usize
            },
            48usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(tgid)
            )
        );
    }
    test_field_tgid();
    fn test_field_tid() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).tid) as usize - ptr as usize
            },
            52usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(tid)
            )
        );
    }
    test_field_tid();
    fn test_field_cpu() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cpu) as usize - ptr as usize
            },
            56usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(cpu)
            )
        );
    }
    test_field_cpu();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_event>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            60usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_event),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_hello {
    pub size: __u32,
    pub major: __u16,
    pub minor: __u16,
    pub device: __u32,
    pub event_size: __u32,
    pub features: __u64,
    pub kinds: __u32,
    pub queue_bytes: __u32,
    pub lower_dev: __u64,
    pub reserved: __u64,
}
#[test]
fn bindgen_test_layout_rfs_hello() {
    assert_eq!(
        ::std::mem::size_of::<rfs_hello>(),
        48usize,
        concat!("Size of: ", stringify!(rfs_hello))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_hello>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_hello))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_major() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).major) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(major)
            )
        );
    }
    test_field_major();
    fn test_field_minor() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).minor) as usize - ptr as usize
            },
            6usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(minor)
            )
        );
    }
    test_field_minor();
    fn test_field_device() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).device) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(device)
            )
        );
    }
    test_field_device();
    fn test_field_event_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).event_size) as usize - ptr as usize
            },
            12usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(event_size)
            )
        );
    }
    test_field_event_size();
    fn test_field_features() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).features) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(features)
            )
        );
    }
    test_field_features();
    fn test_field_kinds() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).kinds) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(kinds)
            )
        );
    }
    test_field_kinds();
    fn test_field_queue_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).queue_bytes) as usize - ptr as usize
            },
            28usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(queue_bytes)
            )
        );
    }
    test_field_queue_bytes();
    fn test_field_lower_dev() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).lower_dev) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(lower_dev)
            )
        );
    }
    test_field_lower_dev();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_hello>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_hello),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_mask {
    pub size: __u32,
    pub kinds: __u32,
    pub progress_bytes: __u64,
    pub reserved: __u64,
}
#[test]
fn bindgen_test_layout_rfs_mask() {
    assert_eq!(
        ::std::mem::size_of::<rfs_mask>(),
        24usize,
        concat!("Size of: ", stringify!(rfs_mask))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_mask>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_mask))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_mask>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_mask),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_kinds() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_mask>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).kinds) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_mask),
                "::",
                stringify!(kinds)
            )
        );
    }
    test_field_kinds();
    fn test_field_progress_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_mask>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).progress_bytes) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_mask),
                "::",
                stringify!(progress_bytes)
            )
        );
    }
    test_field_progress_bytes();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_mask>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_mask),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_lower_fd {
    pub size: __u32,
    pub flags: __u32,
    pub file: __u64,
    pub fd: __s32,
    pub reserved: __u32,
}
#[test]
fn bindgen_test_layout_rfs_lower_fd() {
    assert_eq!(
        ::std::mem::size_of::<rfs_lower_fd>(),
        24usize,
        concat!("Size of: ", stringify!(rfs_lower_fd))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_lower_fd>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_lower_fd))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_lower_fd>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_lower_fd),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_lower_fd>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_lower_fd),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_lower_fd>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_lower_fd),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_fd() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_lower_fd>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).fd) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_lower_fd),
                "::",
                stringify!(fd)
            )
        );
    }
    test_field_fd();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_lower_fd>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            20usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_lower_fd),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_path {
    pub size: __u32,
    pub buf_len: __u32,
    pub file: __u64,
    pub buf: __u64,
    pub path_len: __u32,
    pub reserved: __u32,
}
#[test]
fn bindgen_test_layout_rfs_path() {
    assert_eq!(
        ::std::mem::size_of::<rfs_path>(),
        32usize,
        concat!("Size of: ", stringify!(rfs_path))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_path>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_path))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_buf_len() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).buf_len) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(buf_len)
            )
        );
    }
    test_field_buf_len();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_buf() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).buf) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(buf)
            )
        );
    }
    test_field_buf();
    fn test_field_path_len() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).path_len) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(path_len)
            )
        );
    }
    test_field_path_len();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_path>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            28usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_path),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_load {
    pub size: __u32,
    pub flags: __u32,
    pub file: __u64,
    pub offset: __u64,
    pub length: __u64,
    pub cookie: __u64,
    pub charge: __s32,
    pub reserved: __u32,
    pub done: __u64,
    pub loaded: __u64,
}
#[test]
fn bindgen_test_layout_rfs_load() {
    assert_eq!(
        ::std::mem::size_of::<rfs_load>(),
        64usize,
        concat!("Size of: ", stringify!(rfs_load))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_load>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_load))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_offset() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).offset) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(offset)
            )
        );
    }
    test_field_offset();
    fn test_field_length() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).length) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(length)
            )
        );
    }
    test_field_length();
    fn test_field_cookie() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cookie) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(cookie)
            )
        );
    }
    test_field_cookie();
    fn test_field_charge() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).charge) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(charge)
            )
        );
    }
    test_field_charge();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            44usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
    fn test_field_done() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).done) as usize - ptr as usize
            },
            48usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(done)
            )
        );
    }
    test_field_done();
    fn test_field_loaded() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_load>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).loaded) as usize - ptr as usize
            },
            56usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_load),
                "::",
                stringify!(loaded)
            )
        );
    }
    test_field_loaded();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_stop {
    pub size: __u32,
    pub reserved: __u32,
    pub cookie: __u64,
    pub stopped: __u64,
}
#[test]
fn bindgen_test_layout_rfs_stop() {
    assert_eq!(
        ::std::mem::size_of::<rfs_stop>(),
        24usize,
        concat!("Size of: ", stringify!(rfs_stop))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_stop>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_stop))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stop>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stop),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stop>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stop),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
    fn test_field_cookie() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stop>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cookie) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stop),
                "::",
                stringify!(cookie)
            )
        );
    }
    test_field_cookie();
    fn test_field_stopped() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stop>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).stopped) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stop),
                "::",
                stringify!(stopped)
            )
        );
    }
    test_field_stopped();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_evict {
    pub size: __u32,
    pub flags: __u32,
    pub file: __u64,
    pub offset: __u64,
    pub length: __u64,
    pub evicted: __u64,
    pub kept: __u64,
}
#[test]
fn bindgen_test_layout_rfs_evict() {
    assert_eq!(
        ::std::mem::size_of::<rfs_evict>(),
        48usize,
        concat!("Size of: ", stringify!(rfs_evict))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_evict>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_evict))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_offset() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).offset) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(offset)
            )
        );
    }
    test_field_offset();
    fn test_field_length() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).length) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(length)
            )
        );
    }
    test_field_length();
    fn test_field_evicted() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).evicted) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(evicted)
            )
        );
    }
    test_field_evicted();
    fn test_field_kept() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_evict>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).kept) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_evict),
                "::",
                stringify!(kept)
            )
        );
    }
    test_field_kept();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_resident {
    pub size: __u32,
    pub flags: __u32,
    pub file: __u64,
    pub offset: __u64,
    pub length: __u64,
    pub bitmap: __u64,
    pub bitmap_len: __u32,
    pub reserved: __u32,
    pub pages: __u64,
    pub cached: __u64,
}
#[test]
fn bindgen_test_layout_rfs_resident() {
    assert_eq!(
        ::std::mem::size_of::<rfs_resident>(),
        64usize,
        concat!("Size of: ", stringify!(rfs_resident))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_resident>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_resident))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
    fn test_field_offset() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).offset) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(offset)
            )
        );
    }
    test_field_offset();
    fn test_field_length() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).length) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(length)
            )
        );
    }
    test_field_length();
    fn test_field_bitmap() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).bitmap) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(bitmap)
            )
        );
    }
    test_field_bitmap();
    fn test_field_bitmap_len() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).bitmap_len) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(bitmap_len)
            )
        );
    }
    test_field_bitmap_len();
    fn test_field_reserved() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).reserved) as usize - ptr as usize
            },
            44usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(reserved)
            )
        );
    }
    test_field_reserved();
    fn test_field_pages() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).pages) as usize - ptr as usize
            },
            48usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(pages)
            )
        );
    }
    test_field_pages();
    fn test_field_cached() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_resident>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).cached) as usize - ptr as usize
            },
            56usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_resident),
                "::",
                stringify!(cached)
            )
        );
    }
    test_field_cached();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_stats {
    pub size: __u32,
    pub flags: __u32,
    pub events: __u64,
    pub merged: __u64,
    pub delivered: __u64,
    pub lost: __u64,
    pub queued: __u64,
    pub queue_bytes: __u64,
    pub loads: __u64,
    pub loaded: __u64,
    pub evicts: __u64,
    pub evicted: __u64,
    pub files: __u64,
}
#[test]
fn bindgen_test_layout_rfs_stats() {
    assert_eq!(
        ::std::mem::size_of::<rfs_stats>(),
        96usize,
        concat!("Size of: ", stringify!(rfs_stats))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_stats>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_stats))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_flags() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).flags) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(flags)
            )
        );
    }
    test_field_flags();
    fn test_field_events() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).events) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(events)
            )
        );
    }
    test_field_events();
    fn test_field_merged() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).merged) as usize - ptr as usize
            },
            16usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(merged)
            )
        );
    }
    test_field_merged();
    fn test_field_delivered() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).delivered) as usize - ptr as usize
            },
            24usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(delivered)
            )
        );
    }
    test_field_delivered();
    fn test_field_lost() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).lost) as usize - ptr as usize
            },
            32usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(lost)
            )
        );
    }
    test_field_lost();
    fn test_field_queued() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).queued) as usize - ptr as usize
            },
            40usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(queued)
            )
        );
    }
    test_field_queued();
    fn test_field_queue_bytes() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).queue_bytes) as usize - ptr as usize
            },
            48usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(queue_bytes)
            )
        );
    }
    test_field_queue_bytes();
    fn test_field_loads() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).loads) as usize - ptr as usize
            },
            56usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(loads)
            )
        );
    }
    test_field_loads();
    fn test_field_loaded() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).loaded) as usize - ptr as usize
            },
            64usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(loaded)
            )
        );
    }
    test_field_loaded();
    fn test_field_evicts() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).evicts) as usize - ptr as usize
            },
            72usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(evicts)
            )
        );
    }
    test_field_evicts();
    fn test_field_evicted() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).evicted) as usize - ptr as usize
            },
            80usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(evicted)
            )
        );
    }
    test_field_evicted();
    fn test_field_files() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_stats>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).files) as usize - ptr as usize
            },
            88usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_stats),
                "::",
                stringify!(files)
            )
        );
    }
    test_field_files();
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rfs_file_info {
    pub size: __u32,
    pub device: __u32,
    pub file: __u64,
}
#[test]
fn bindgen_test_layout_rfs_file_info() {
    assert_eq!(
        ::std::mem::size_of::<rfs_file_info>(),
        16usize,
        concat!("Size of: ", stringify!(rfs_file_info))
    );
    assert_eq!(
        ::std::mem::align_of::<rfs_file_info>(),
        8usize,
        concat!("Alignment of ", stringify!(rfs_file_info))
    );
    fn test_field_size() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_file_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).size) as usize - ptr as usize
            },
            0usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_file_info),
                "::",
                stringify!(size)
            )
        );
    }
    test_field_size();
    fn test_field_device() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_file_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).device) as usize - ptr as usize
            },
            4usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_file_info),
                "::",
                stringify!(device)
            )
        );
    }
    test_field_device();
    fn test_field_file() {
        assert_eq!(
            unsafe {
                let uninit = ::std::mem::MaybeUninit::<rfs_file_info>::uninit();
                let ptr = uninit.as_ptr();
                ::std::ptr::addr_of!((*ptr).file) as usize - ptr as usize
            },
            8usize,
            concat!(
                "Offset of field: ",
                stringify!(rfs_file_info),
                "::",
                stringify!(file)
            )
        );
    }
    test_field_file();
}
pub const RFS_IOC_HELLO: __u32 = 3224420096;
pub const RFS_IOC_MASK: __u32 = 1075363585;
pub const RFS_IOC_LOWER_FD: __u32 = 3222847234;
pub const RFS_IOC_PATH: __u32 = 3223371523;
pub const RFS_IOC_LOAD: __u32 = 3225468676;
pub const RFS_IOC_STOP: __u32 = 3222847237;
pub const RFS_IOC_EVICT: __u32 = 3224420102;
pub const RFS_IOC_RESIDENT: __u32 = 3225468679;
pub const RFS_IOC_STATS: __u32 = 3227565832;
pub const RFS_IOC_FILE: __u32 = 3222322960;
