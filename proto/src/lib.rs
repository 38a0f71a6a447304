//! tidefs
