//! Compiles only if `brisk-wire`, `brisk-tcp` and `brisk-link` do without `std`.
#![no_std]

pub use {brisk_link, brisk_tcp, brisk_wire};

/// The one panic handler of the program; `std` would define a second.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
