//! Whether the address that clients will use can be had, asked before anything starts.
//! The answer may be outdated when the router binds; then the router's own refusal ends the start.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error("{0} is in use by another program: choose another address with --listen")]
    InUse(SocketAddr),
    #[error("cannot listen on {0}: choose an address of this machine with --listen")]
    Refused(SocketAddr, #[source] std::io::Error),
}

pub(crate) fn check_free(address: SocketAddr) -> Result<(), PortError> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(PortError::InUse(address)),
        Err(error) => Err(PortError::Refused(address, error)),
    }
}

/// The address to call for a program that listens on `address`: "everywhere" is reached through loopback.
pub(crate) fn to_call(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_refused_and_a_freed_one_is_not() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        assert!(matches!(check_free(address), Err(PortError::InUse(a)) if a == address));
        drop(held);
        check_free(address).unwrap();
    }

    #[test]
    fn an_address_of_another_machine_is_refused_with_the_reason() {
        let error = check_free("192.0.2.1:80".parse().unwrap()).unwrap_err();
        assert!(matches!(error, PortError::Refused(..)), "{error}");
    }

    #[test]
    fn a_wildcard_is_called_through_loopback() {
        assert_eq!(to_call("0.0.0.0:8000".parse().unwrap()).to_string(), "127.0.0.1:8000");
        assert_eq!(to_call("[::]:8000".parse().unwrap()).to_string(), "[::1]:8000");
        assert_eq!(to_call("10.0.0.7:8000".parse().unwrap()).to_string(), "10.0.0.7:8000");
    }
}
