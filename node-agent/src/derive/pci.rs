//! PCI addresses and the way from a device up to its host bridge.
//! Out: addresses as sysfs writes them (`0000:17:00.0`); NVML writes the domain with eight digits and letters in upper case.

use super::excerpt;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a PCI address such as 0000:17:00.0, found {found:?}")]
pub(crate) struct AddressError {
    found: String,
}

/// The address of `text` as sysfs writes it.
pub(crate) fn address(text: &str) -> Result<String, AddressError> {
    parse_address(text.trim()).ok_or_else(|| AddressError { found: excerpt(text) })
}

fn parse_address(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |digits: &str, max: u32| {
        let plain = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|&number| plain && number <= max)
    };
    let (domain, bus) = (hex(domain, u32::MAX)?, hex(bus, 0xff)?);
    let (device, function) = (hex(device, 0x1f)?, hex(function, 7)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Where a device hangs: its host bridge and the bridges from there to the device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain<'a> {
    pub(super) host_bridge: &'a str,
    /// The first is the root port.
    bridges: Vec<&'a str>,
}

impl<'a> Chain<'a> {
    /// In: the target of the device's link in /sys/bus/pci/devices. None: a virtual bus without a host bridge.
    pub(super) fn of(link: &'a str) -> Option<Self> {
        let steps: Vec<&str> = link.split('/').collect();
        let root = steps.iter().position(|step| is_host_bridge(step))?;
        let (_device, bridges) = steps[root + 1..].split_last()?;
        Some(Chain { host_bridge: steps[root], bridges: bridges.to_vec() })
    }

    /// Two devices below one root port share at least the switch on it.
    pub(super) fn shares_switch(&self, other: &Self) -> bool {
        self.host_bridge == other.host_bridge
            && self.bridges.first().is_some_and(|first| other.bridges.first() == Some(first))
    }
}

/// `pci0000:16`
fn is_host_bridge(step: &str) -> bool {
    step.strip_prefix("pci").and_then(|rest| rest.split_once(':')).is_some_and(|(domain, bus)| {
        [domain, bus].iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_of_nvml_becomes_one_of_sysfs() {
        assert_eq!(address("00000000:B7:00.0").unwrap(), "0000:b7:00.0");
        assert_eq!(address("0000:17:1f.7").unwrap(), "0000:17:1f.7");
        assert_eq!(address("00010000:01:00.0").unwrap(), "10000:01:00.0");
    }

    #[test]
    fn other_texts_are_no_addresses() {
        for text in
            ["", "17:00.0", "0000:17:00", "0000:17:00.8", "0000:100:00.0", "../../etc:17:00.0", "+1:17:00.0"]
        {
            assert_eq!(address(text), Err(AddressError { found: text.into() }));
        }
    }

    #[test]
    fn devices_below_one_root_port_share_a_switch() {
        let chain = |link| Chain::of(link).unwrap();
        let a = chain("../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0");
        let b = chain("../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0");
        let c = chain("../../../devices/pci0000:15/0000:15:02.0/0000:1a:00.0");
        let integrated = chain("../../../devices/pci0000:15/0000:15:03.0");
        assert!(a.shares_switch(&b));
        assert!(!a.shares_switch(&c) && a.host_bridge == c.host_bridge);
        assert!(!integrated.shares_switch(&integrated));
    }

    #[test]
    fn a_device_on_a_virtual_bus_has_no_chain() {
        assert_eq!(Chain::of("../../../devices/LNXSYSTM:00/VMBUS:00/47505500/pci1234"), None);
        assert_eq!(Chain::of(""), None);
    }

    proptest! {
        #[test]
        fn an_address_read_again_stays_the_same(text in "[0-9A-Fa-f]{1,8}:[0-9a-f]{2}:[01][0-9a-f]\\.[0-7]") {
            let once = address(&text).unwrap();
            prop_assert_eq!(address(&once).unwrap(), once);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = address(&text);
            let _ = Chain::of(&text);
        }
    }
}
