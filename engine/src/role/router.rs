//! The router: forwards to a decode and names the prefill.
