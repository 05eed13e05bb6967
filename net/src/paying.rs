//! Paying: each call takes its place among the streams before a service sees it, and learns from whose accounts it takes.
//!
//! ```text
//! calls (Bill, empty) ──> access (Bearer) ──> here: Bill settled, Paying ──> budget, services
//! ```
//!
//! Invariant: a call holds its place for as long as HTTP/2 holds anything of its answer.
//!
//! Must not know: what is asked.

use crate::accounts::{Payer, Resource, Share, Tier};
use crate::arrival::Arrival;
use crate::budget::{Budget, Paying};
use crate::refusals::Refusal;
use crate::status::to_status;
use chiplog::{Error, ErrorKind};
use http::{Request, Response};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tower_layer::Layer;

/// From whose accounts a call takes, with its place among the streams. Empty until that is known. In the extensions of its
/// request, and held by its answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bill(Arc<OnceLock<(Arc<Payer>, Share)>>);

impl Bill {
    /// None: it was not settled, and nothing of it is counted.
    pub(crate) fn payer(&self) -> Option<&Arc<Payer>> {
        self.0.get().map(|(payer, _)| payer)
    }

    #[cfg(test)]
    pub(crate) fn of(payer: &Arc<Payer>) -> Self {
        let bill = Self::default();
        bill.0.set((payer.clone(), payer.nothing(Resource::Streams))).unwrap();
        bill
    }
}

/// Has calls counted, and refused beyond the limits of a [`Budget`]. Stands within
/// [`AccessLayer`](crate::access::AccessLayer), which knows the token.
///
/// ```
/// use chiplog_net::budget::Budget;
/// use chiplog_net::paying::CallBudgetLayer;
/// let server = chiplog_net::listener::server().layer(CallBudgetLayer::new(Budget::default()));
/// # drop(server);
/// ```
#[derive(Clone, Debug)]
pub struct CallBudgetLayer {
    budget: Budget,
}

impl CallBudgetLayer {
    /// Within this budget.
    pub fn new(budget: Budget) -> Self {
        Self { budget }
    }
}

impl<S> Layer<S> for CallBudgetLayer {
    type Service = CallBudgeted<S>;

    fn layer(&self, inner: S) -> CallBudgeted<S> {
        CallBudgeted { inner, budget: self.budget.clone() }
    }
}

/// What [`CallBudgetLayer`] makes of a service.
///
/// ```
/// use chiplog_net::paying::{CallBudgetLayer, CallBudgeted};
/// use tower_layer::Layer;
/// let budgeted: CallBudgeted<&str> = CallBudgetLayer::new(Default::default()).layer("a service");
/// # drop(budgeted);
/// ```
#[derive(Clone, Debug)]
pub struct CallBudgeted<S> {
    inner: S,
    budget: Budget,
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for CallBudgeted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let payer = self.budget.payer_of(request.extensions());
        match payer.try_take(Resource::Streams, 1) {
            Ok(place) => {
                if let Some(Bill(bill)) = request.extensions().get() {
                    let _ = bill.set((payer.clone(), place)); // once: no call comes by here twice
                }
                request.extensions_mut().insert(Paying(payer));
                Box::pin(self.inner.call(request))
            }
            Err(of) => {
                if let Some(arrival) = request.extensions().get::<Arrival>() {
                    arrival.calls().refused();
                }
                let status = self.refuse(of);
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

impl<S> CallBudgeted<S> {
    fn refuse(&self, of: Tier) -> Status {
        self.budget.refusals().count(Refusal::Streams);
        let of = of.name();
        let what = format!("the calls {of} that are open are at their limit: end some, or try again later");
        to_status(&Error::new(ErrorKind::Busy, what), None)
    }
}
