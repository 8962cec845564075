//! The Kubernetes API of Fathom.
